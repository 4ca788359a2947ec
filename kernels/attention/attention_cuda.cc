#include "kernels/attention/attention_cuda.h"

#include "kernels/attention/decode_cuda.h"
#include "kernels/attention/flashinfer/prefill.h"
#include "kernels/attention/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

std::string Describe(cudaError_t error) {
  return error == cudaSuccess ? "" : std::string("attention: ") + cudaGetErrorString(error);
}

// The plain kernel for every row. One thread.
class PlainOnly : public PagedAttention {
 public:
  explicit PlainOnly(const AttentionShapes& shapes) : shapes_(shapes) {}

  std::string Plan(const AttentionBatch& batch, cudaStream_t stream) override {
    batch_ = batch;
    return "";
  }
  std::string Run(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) override {
    return Describe(PlainAttention(shapes_, batch_, kv, qkv, out, PlainRows::kAll, stream));
  }

 private:
  AttentionShapes shapes_;
  AttentionBatch batch_;
};

// Rows with one query by the decode kernel, so that their bits are the same in decode and in mixed
// steps; the others by FlashInfer, or by the plain kernel where it has none. One thread.
class Best : public PagedAttention {
 public:
  Best(const AttentionShapes& shapes, std::unique_ptr<DecodeAttention> decode,
       std::unique_ptr<FlashPrefill> prefill)
      : shapes_(shapes), decode_(std::move(decode)), prefill_(std::move(prefill)) {}

  std::string Plan(const AttentionBatch& batch, cudaStream_t stream) override {
    batch_ = batch;
    decodes_ = DecodesRows(batch);
    if (batch.max_q_len <= 1 || prefill_ == nullptr) return "";
    return prefill_->Plan(batch, stream);
  }
  std::string Run(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) override {
    if (batch_.max_q_len > 1) {
      const std::string error = RunPrefill(kv, qkv, out, stream);
      if (!error.empty()) return error;
    }
    return decodes_ ? Describe(decode_->Run(batch_, kv, qkv, out, stream)) : "";
  }

 private:
  // Whether a row is the decode kernel's, pads among them. Any may be where every row has one
  // query: a graph runs the step again with other rows.
  static bool DecodesRows(const AttentionBatch& batch) {
    if (batch.max_q_len <= 1) return true;
    const AttentionRows& rows = batch.host;
    for (int r = 0; r < batch.num_rows; ++r) {
      if (rows.q_begin[r + 1] - rows.q_begin[r] == 1 || rows.kv_len[r] == 0) return true;
    }
    return false;
  }

  std::string RunPrefill(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) {
    if (prefill_ != nullptr) return prefill_->Run(kv, qkv, out, stream);
    return Describe(
        PlainAttention(shapes_, batch_, kv, qkv, out, PlainRows::kSeveralQueries, stream));
  }

  AttentionShapes shapes_;
  std::unique_ptr<DecodeAttention> decode_;
  std::unique_ptr<FlashPrefill> prefill_;
  AttentionBatch batch_;
  bool decodes_ = true;
};

}  // namespace

std::unique_ptr<PagedAttention> MakePagedAttention(const AttentionShapes& shapes,
                                                   std::string* error) {
  const HeadShape& heads = shapes.heads;
  if (heads.num_kv_heads <= 0 || heads.num_heads % heads.num_kv_heads != 0 || heads.head_dim <= 0 ||
      heads.head_dim % 8 != 0 || heads.head_dim > 256) {
    *error = "attention: " + std::to_string(heads.num_heads) + "/" +
             std::to_string(heads.num_kv_heads) + " heads of " + std::to_string(heads.head_dim) +
             ": head_dim must be a multiple of 8 up to 256, KV heads must divide heads";
    return nullptr;
  }
  if (!DecodeHas(shapes)) return std::make_unique<PlainOnly>(shapes);
  auto decode = DecodeAttention::Make(shapes, error);
  if (decode == nullptr) return nullptr;
  error->clear();
  auto prefill = MakeFlashPrefill(shapes, FlashKernel::kBest, error);
  if (!error->empty()) return nullptr;
  return std::make_unique<Best>(shapes, std::move(decode), std::move(prefill));
}

}  // namespace rootstock::kernels::cuda
