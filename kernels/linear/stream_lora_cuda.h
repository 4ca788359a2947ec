// The weight-streaming matrix product with LoRA on the way.
#pragma once

#include <cuda.h>

#include "kernels/linear/stream_plan.h"

namespace rootstock::kernels::cuda {

// Before the first launch.
cudaError_t PrepareLoraStreams(int shared_bytes);

// Of args that StreamLinear takes, not gated: whether there is such a kernel.
bool StreamShrinks(const LinearArgs& args, StreamTile tile);
// Of args with `shrink` that it gates otherwise. The blocks wait for each other's v: all must run
// at once.
bool StreamGatesLora(const LinearArgs& args, StreamTile tile);

// counts: two of the device, 0 between launches.
cudaError_t LaunchLoraStream(const LinearArgs& args, StreamTile tile, const StreamLaunch& launch,
                             const CUtensorMap& w, const CUtensorMap& x, unsigned* counts,
                             cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
