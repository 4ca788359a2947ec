// A step of attention on the GPU beside the CPU reference, for tests.
#pragma once

#include <functional>
#include <vector>

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

struct CaseShape {
  Type type = Type::kBF16;
  HeadShape heads;
  int page_tokens = 16;
};

// The last q_len of kv_len positions are the step's; kv_len 0: pad tokens. `seed` decides what the
// sequence holds.
struct CaseRow {
  int q_len = 1;
  int kv_len = 0;
  uint32_t seed = 0;
};

// Scattered pages of two layers, of which the second is used; what must not be read is NaN.
// One thread.
class AttentionCase {
 public:
  AttentionCase(const CaseShape& shape, const std::vector<CaseRow>& rows);
  ~AttentionCase();
  AttentionCase(const AttentionCase&) = delete;
  AttentionCase& operator=(const AttentionCase&) = delete;

  const AttentionBatch& batch() const { return batch_; }
  // For an attention that holds exactly this case.
  AttentionShapes shapes() const;
  const PagedKv& kv() const { return kv_; }
  const void* qkv() const { return qkv_; }
  void* out() const { return out_; }

  // Makes `out` NaN, calls, waits; the error of the call or of CUDA.
  std::string Run(const std::function<std::string()>& call);
  // Of the last Run: [tokens, num_heads · head_dim], as f32.
  std::vector<float> Result() const;
  // The same from the CPU.
  std::vector<float> Reference() const;
  // Largest ‖result - reference‖ / ‖reference‖ of a (token, head); infinite when a pad's is not 0.
  double Error() const;

 private:
  void FillRow(size_t index, int first_token);
  int width() const { return shape_.heads.num_heads * shape_.heads.head_dim; }
  int qkv_width() const;
  void Upload();

  CaseShape shape_;
  std::vector<CaseRow> rows_;
  std::vector<int32_t> q_begin_, kv_len_, page_begin_, page_ids_;
  std::vector<float> host_qkv_, host_slab_;
  size_t layer_floats_ = 0;
  AttentionBatch batch_;
  PagedKv kv_;
  void* qkv_ = nullptr;
  void* out_ = nullptr;
  std::vector<void*> owned_;
};

}  // namespace rootstock::kernels::cuda
