// Attention of rows with several queries, by FlashInfer's kernels.
#pragma once

#include <memory>
#include <string>

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

// kBest: FA3 where the device and the build have it (sm_90a), else FA2.
enum class FlashKernel { kBest, kFa2, kFa3 };

// bf16, head_dim 64 and 128, any group, any page size. Rows with one query and pads are left
// alone. Plan and Run as PagedAttention's. *One stream at a time.*
class FlashPrefill {
 public:
  virtual ~FlashPrefill() = default;
  virtual std::string Plan(const AttentionBatch& batch, cudaStream_t stream) = 0;
  virtual std::string Run(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) = 0;
};

// On the current device. Null where there is no such kernel for the shapes (then `error` stays
// empty) or no memory.
std::unique_ptr<FlashPrefill> MakeFlashPrefill(const AttentionShapes& shapes, FlashKernel kernel,
                                               std::string* error);

}  // namespace rootstock::kernels::cuda
