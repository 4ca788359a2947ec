// Attention over pages on the GPU.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

// The sequences of a step. The arrays are given twice: on the host for planning, on the device (at
// fixed addresses, content already copied in stream order) for the kernels.
struct AttentionRows {
  const int32_t* q_begin = nullptr;  // [rows + 1]: tokens of row i are q_begin[i] … q_begin[i + 1]
  const int32_t* kv_len = nullptr;   // [rows]: positions 0 … kv_len - 1 are in its pages; 0: pad
  const int32_t* page_begin = nullptr;  // [rows + 1]: its pages are page_ids[page_begin[i] …]
  const int32_t* page_ids = nullptr;    // [pages]
};

struct AttentionBatch {
  AttentionRows host, device;
  int num_rows = 0;    // of the step, pads included
  int num_tokens = 0;  // likewise
  int max_q_len = 0;   // 1: decode
};

struct AttentionShapes {
  Type type = Type::kBF16;
  HeadShape heads;
  int page_tokens = 0;
  size_t page_bytes = 0;
  int max_rows = 0;
  int max_tokens = 0;
  int max_pages = 0;  // of page_ids
};

// Causal: a row's q are its last positions. Plan once a step, outside a capture; Run once a layer,
// within. For decode (max_q_len 1) the result of a row depends on that row alone: the split over
// the context is fixed, whatever the batch. *One stream at a time.*
class PagedAttention {
 public:
  virtual ~PagedAttention() = default;
  // May enqueue uploads on `stream`, ahead of what Runs enqueue; doesn't wait. Empty on success.
  virtual std::string Plan(const AttentionBatch& batch, cudaStream_t stream) = 0;
  // q at qkv [tokens, (num_heads + 2 · num_kv_heads) · head_dim]; out [tokens, num_heads ·
  // head_dim].
  virtual std::string Run(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) = 0;
};

// The best there is for the shapes: own decode kernel for max_q_len 1, FlashInfer for prefill where
// it has the head_dim, the plain kernel elsewhere and for f32. Null and `error` when the device's
// memory doesn't hold the workspaces.
std::unique_ptr<PagedAttention> MakePagedAttention(const AttentionShapes& shapes,
                                                   std::string* error);

}  // namespace rootstock::kernels::cuda
