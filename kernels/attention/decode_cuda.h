// Attention of rows with one query, split over the context.
#pragma once

#include <memory>

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

// bf16; head_dim 64 and 128, up to 8 query heads a KV head, page_tokens a multiple of 16.
bool DecodeHas(const AttentionShapes& shapes);

// Takes the rows of a batch with one query each (others are left alone) and zeroes the outputs of
// pads. The grid is fixed; what there is to do is read from device memory when the kernel runs.
//
// A context is cut into chunks of 64 positions, four of which make a span and 32 a section; chunks
// are summed to spans, spans to sections and sections to the result from left to right, whichever
// blocks compute them. So a row's
// bits depend on that row alone, while each block takes an equal share of all chunks. *One stream
// at a time.*
class DecodeAttention {
 public:
  // On the current device; null and `error` when its memory does not hold the workspaces.
  static std::unique_ptr<DecodeAttention> Make(const AttentionShapes& shapes, std::string* error);
  ~DecodeAttention();
  DecodeAttention(const DecodeAttention&) = delete;
  DecodeAttention& operator=(const DecodeAttention&) = delete;

  cudaError_t Run(const AttentionBatch& batch, const PagedKv& kv, const void* qkv, void* out,
                  cudaStream_t stream) const;

 private:
  DecodeAttention() = default;
  // Lays out the workspace for this many chunks.
  void Arrange(size_t chunks);

  AttentionShapes shapes_;
  int blocks_ = 0;
  void* encode_ = nullptr;  // the driver's cuTensorMapEncodeTiled
  size_t workspace_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  // Of what decode_fold.cuh's FoldMemory points to.
  size_t softmax_offset_ = 0;
  size_t done_offset_ = 0;
  size_t row_done_offset_ = 0;
  size_t section_slots_ = 0;
};

}  // namespace rootstock::kernels::cuda
