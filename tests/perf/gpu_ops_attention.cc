// Paged attention at the heads of 8B, in bf16, over scattered pages.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention_cuda.h"
#include "tests/perf/gpu_ops_parts.h"
#include "tests/perf/lora/lora_bench_data.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr cuda::HeadShape kHeads8B = {32, 8, 128};
constexpr int kPageTokens = 16;
constexpr size_t kRotated = size_t{256} << 20;  // several times the second cache

struct AttentionCase {
  int rows = 0;
  int q_len = 0;
  int kv_len = 0;
};

// A step in device memory; KV of several layers lies in each page. *One thread.*
class AttentionStep {
 public:
  explicit AttentionStep(const AttentionCase& c) : case_(c) {
    const size_t kv_bytes = KvBytes();
    layers_ = static_cast<int>(std::clamp<size_t>(kRotated / kv_bytes, 2, 32));
    const int pages = (c.kv_len + kPageTokens - 1) / kPageTokens;
    for (int row = 0; row < c.rows; ++row) {
      q_begin_.push_back(row * c.q_len);
      page_begin_.push_back(row * pages);
      kv_len_.push_back(c.kv_len);
    }
    q_begin_.push_back(c.rows * c.q_len);
    page_begin_.push_back(c.rows * pages);
    page_ids_.resize(c.rows * pages);
    std::iota(page_ids_.begin(), page_ids_.end(), 1);
    std::shuffle(page_ids_.begin(), page_ids_.end(), std::mt19937(1));
    layer_bytes_ = size_t{4} * kPageTokens * kHeads8B.num_kv_heads * kHeads8B.head_dim;
    const int width = kHeads8B.num_heads * kHeads8B.head_dim;
    const int qkv_width = width + 2 * kHeads8B.num_kv_heads * kHeads8B.head_dim;
    slab_ = cuda::RandomBf16((page_ids_.size() + 1) * layer_bytes_ * layers_ / 2, 1.0f);
    qkv_ = cuda::RandomBf16(size_t{1} * c.rows * c.q_len * qkv_width, 1.0f);
    out_ = cuda::RandomBf16(size_t{1} * c.rows * c.q_len * width, 1.0f);
    for (const auto* from : {&q_begin_, &kv_len_, &page_begin_, &page_ids_}) {
      device_.push_back(std::make_unique<cuda::DeviceArray<int32_t>>(*from));
    }
  }

  cuda::AttentionBatch batch() const {
    cuda::AttentionBatch out;
    out.host = {q_begin_.data(), kv_len_.data(), page_begin_.data(), page_ids_.data()};
    out.device = {device_[0]->get(), device_[1]->get(), device_[2]->get(), device_[3]->get()};
    out.num_rows = case_.rows;
    out.num_tokens = case_.rows * case_.q_len;
    out.max_q_len = case_.q_len;
    return out;
  }
  cuda::AttentionShapes shapes() const {
    return {cuda::Type::kBF16,
            kHeads8B,
            kPageTokens,
            layer_bytes_ * layers_,
            case_.rows,
            case_.rows * case_.q_len,
            static_cast<int>(page_ids_.size())};
  }
  std::string Run(cuda::PagedAttention& attention, int layer, cudaStream_t stream) const {
    const cuda::PagedKv kv{slab_->get(), layer_bytes_ * layers_, layer_bytes_ * layer, kPageTokens};
    return attention.Run(kv, qkv_->get(), out_->get(), stream);
  }
  int layers() const { return layers_; }
  // Of a layer.
  size_t KvBytes() const {
    return size_t{4} * kHeads8B.num_kv_heads * kHeads8B.head_dim * case_.rows * case_.kv_len;
  }
  double Flops() const {
    const double keys = 0.5 * case_.q_len * (2.0 * case_.kv_len - case_.q_len + 1);
    return 4.0 * kHeads8B.num_heads * kHeads8B.head_dim * keys * case_.rows;
  }

 private:
  const AttentionCase case_;
  int layers_ = 0;
  size_t layer_bytes_ = 0;
  std::vector<int32_t> q_begin_, kv_len_, page_begin_, page_ids_;
  std::unique_ptr<cuda::DeviceArray<std::byte>> slab_, qkv_, out_;
  std::vector<std::unique_ptr<cuda::DeviceArray<int32_t>>> device_;
};

double AttentionMicroseconds(const AttentionStep& step) {
  std::string error;
  const auto attention = cuda::MakePagedAttention(step.shapes(), &error);
  if (attention == nullptr) return std::nan("");
  cudaStream_t stream = nullptr;
  cuda::CheckCuda(cudaStreamCreate(&stream), "stream");
  error = attention->Plan(step.batch(), stream);
  cuda::CheckCuda(cudaStreamSynchronize(stream), "plan");
  cuda::CheckCuda(cudaStreamDestroy(stream), "stream");
  if (!error.empty()) return std::nan("");
  return MicrosecondsEach(
      step.layers(), [&](int layer, cudaStream_t s) { return step.Run(*attention, layer, s); });
}

}  // namespace

void BenchAttention(const Ceilings& ceilings, std::vector<BenchResult>& results) {
  for (const int rows : {1, 16, 64, 256}) {
    const AttentionStep step({rows, 1, 1024});
    const double us = AttentionMicroseconds(step);
    const std::string name = absl::StrCat("decode attention, context 1024, rows=", rows);
    results.push_back({"", name, us, 0, "lower", "us"});
    results.push_back({"", name + ", share of the read bandwidth",
                       step.KvBytes() / ceilings.read_bytes_per_us / us, 0, "higher", "ratio"});
  }
  for (const AttentionCase& c : {AttentionCase{1, 2048, 2048}, AttentionCase{1, 2048, 8192},
                                 AttentionCase{16, 1024, 1024}}) {
    const AttentionStep step(c);
    const double us = AttentionMicroseconds(step);
    const std::string name =
        absl::StrCat("prefill attention, rows=", c.rows, " q=", c.q_len, " context=", c.kv_len);
    results.push_back({"", name, us, 0, "lower", "us"});
    results.push_back({"", name + ", share of the GEMM rate",
                       step.Flops() / ceilings.flops_per_us / us, 0, "higher", "ratio"});
  }
}

}  // namespace rootstock
