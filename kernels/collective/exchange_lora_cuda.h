// What fully sharded adapters lack of v, exchanged where v lies: PackLora, the collective and
// UnpackLora in one kernel, for steps of few tokens on GPUs that reach each other's memory.
#pragma once

#include "kernels/collective/all_reduce_cuda.h"
#include "kernels/lora/lora_exchange.h"

namespace rootstock::kernels::cuda {

// Whether ExchangeLora takes steps of so many tokens, with so many members at most; whatever their
// lora_ranks.
bool TakesExchangeLora(const PeerGroup& group, int num_tokens, int max_members);

// v of exchange.members becomes whole: gather: the ranks' pieces of it side by side; else their
// partial sums added, in rank order. exchange.data and its width are not used. Every rank calls it
// as it would a collective; arguments as PackLora's.
cudaError_t ExchangeLora(const PeerGroup& group, const LoraStep& step,
                         const LoraExchangeStep& exchange, const LoraTargets& targets, bool gather,
                         int num_tokens, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
