// Rows of counts of new sequences, and tokens sampled elsewhere.
#include "kernels/sampler/sampler_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kCountThreads = 256;

__global__ void CountTokens(uint32_t* row, int vocab, const int32_t* tokens, int num_tokens,
                            int num_prompt) {
  const int i = blockIdx.x * kCountThreads + threadIdx.x;
  if (i >= num_tokens) return;
  const int32_t token = tokens[i];
  if (token < 0 || token >= vocab) return;
  if (i < num_prompt) {
    atomicOr(row + token, kInPrompt);
  } else {
    atomicAdd(row + token, 1u);
  }
}

__global__ void TakeTokensKernel(const SampleRow* rows, const int32_t* tokens, int num_rows,
                                 int32_t* last_tokens) {
  const int i = blockIdx.x * kCountThreads + threadIdx.x;
  if (i < num_rows && rows[i].given < 0) last_tokens[rows[i].slot] = max(tokens[i], 0);
}

}  // namespace

void TakeTokens(const SampleRow* rows, const int32_t* tokens, int num_rows, int32_t* last_tokens,
                cudaStream_t stream) {
  if (num_rows <= 0) return;
  TakeTokensKernel<<<(num_rows + kCountThreads - 1) / kCountThreads, kCountThreads, 0, stream>>>(
      rows, tokens, num_rows, last_tokens);
}

void ClearCounts(uint32_t* row, int vocab, cudaStream_t stream) {
  cudaMemsetAsync(row, 0, sizeof(uint32_t) * vocab, stream);
}

void AddToCounts(uint32_t* row, int vocab, const int32_t* tokens, int num_tokens, int num_prompt,
                 cudaStream_t stream) {
  if (num_tokens <= 0) return;
  const int blocks = (num_tokens + kCountThreads - 1) / kCountThreads;
  CountTokens<<<blocks, kCountThreads, 0, stream>>>(row, vocab, tokens, num_tokens, num_prompt);
}

}  // namespace rootstock::kernels::cuda
