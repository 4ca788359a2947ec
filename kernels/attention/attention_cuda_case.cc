#include "kernels/attention/attention_cuda_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/attention/attention.h"
#include "kernels/simd/test_data.h"

namespace rootstock::kernels::cuda {
namespace {

// Numbers that the type holds exactly.
std::vector<float> Numbers(Type type, size_t n, uint32_t seed, float spread) {
  std::vector<float> out = RandomFloats(n, seed, spread);
  if (type == Type::kBF16) CutToBf16(out);
  return out;
}

void* ToDevice(const void* from, size_t bytes, std::vector<void*>& owned) {
  void* to = nullptr;
  cudaMalloc(&to, bytes);
  cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  owned.push_back(to);
  return to;
}

void* FloatsToDevice(Type type, std::vector<float> floats, std::vector<void*>& owned) {
  if (type == Type::kF32) return ToDevice(floats.data(), floats.size() * 4, owned);
  const std::vector<uint16_t> cut = CutToBf16(floats);
  return ToDevice(cut.data(), cut.size() * 2, owned);
}

const int32_t* IntsToDevice(const std::vector<int32_t>& ints, std::vector<void*>& owned) {
  return static_cast<const int32_t*>(ToDevice(ints.data(), ints.size() * 4, owned));
}

}  // namespace

AttentionCase::AttentionCase(const CaseShape& shape, const std::vector<CaseRow>& rows)
    : shape_(shape), rows_(rows) {
  q_begin_ = {0};
  page_begin_ = {0};
  for (const CaseRow& row : rows) {
    q_begin_.push_back(q_begin_.back() + row.q_len);
    kv_len_.push_back(row.kv_len);
    page_begin_.push_back(page_begin_.back() +
                          (row.kv_len + shape.page_tokens - 1) / shape.page_tokens);
  }
  const int pages = page_begin_.back() + 1;
  layer_floats_ = size_t{2} * shape.page_tokens * shape.heads.num_kv_heads * shape.heads.head_dim;
  page_ids_.resize(pages);
  std::iota(page_ids_.begin(), page_ids_.end(), 0);
  std::shuffle(page_ids_.begin() + 1, page_ids_.end(), std::mt19937(5));
  page_ids_.erase(page_ids_.begin());  // page 0 is nobody's
  page_ids_.push_back(-1);
  host_slab_.assign(pages * 2 * layer_floats_, NAN);
  host_qkv_.assign(static_cast<size_t>(q_begin_.back()) * qkv_width(), NAN);
  for (size_t i = 0; i < rows.size(); ++i) FillRow(i, q_begin_[i]);
  Upload();
}

AttentionCase::~AttentionCase() {
  for (void* memory : owned_) cudaFree(memory);
}

int AttentionCase::qkv_width() const {
  return (shape_.heads.num_heads + 2 * shape_.heads.num_kv_heads) * shape_.heads.head_dim;
}

void AttentionCase::FillRow(size_t index, int first_token) {
  const CaseRow& row = rows_[index];
  if (row.kv_len == 0) return;
  const size_t q = static_cast<size_t>(row.q_len) * qkv_width();
  const std::vector<float> numbers = Numbers(shape_.type, q, 2 * row.seed + 1, 3.0f);
  std::copy(numbers.begin(), numbers.end(),
            host_qkv_.begin() + static_cast<size_t>(first_token) * qkv_width());
  const size_t n = static_cast<size_t>(shape_.heads.num_kv_heads) * shape_.heads.head_dim;
  const std::vector<float> kv = Numbers(shape_.type, 2 * n * row.kv_len, 2 * row.seed + 2, 1.0f);
  for (int p = 0; p < row.kv_len; ++p) {
    const int page = page_ids_[page_begin_[index] + p / shape_.page_tokens];
    float* k = &host_slab_[(page * 2 + 1) * layer_floats_ + p % shape_.page_tokens * n];
    std::memcpy(k, &kv[2 * p * n], n * sizeof(float));
    std::memcpy(k + shape_.page_tokens * n, &kv[(2 * p + 1) * n], n * sizeof(float));
  }
}

void AttentionCase::Upload() {
  const size_t element = SizeOf(shape_.type);
  kv_.slab = static_cast<std::byte*>(FloatsToDevice(shape_.type, host_slab_, owned_));
  kv_.page_bytes = 2 * layer_floats_ * element;
  kv_.layer_offset = layer_floats_ * element;
  kv_.page_tokens = shape_.page_tokens;
  qkv_ = FloatsToDevice(shape_.type, host_qkv_, owned_);
  cudaMalloc(&out_, std::max<size_t>(q_begin_.back() * width() * element, 1));
  owned_.push_back(out_);
  batch_.host = {q_begin_.data(), kv_len_.data(), page_begin_.data(), page_ids_.data()};
  batch_.device = {IntsToDevice(q_begin_, owned_), IntsToDevice(kv_len_, owned_),
                   IntsToDevice(page_begin_, owned_), IntsToDevice(page_ids_, owned_)};
  batch_.num_rows = static_cast<int>(rows_.size());
  batch_.num_tokens = q_begin_.back();
  for (const CaseRow& row : rows_) batch_.max_q_len = std::max(batch_.max_q_len, row.q_len);
}

AttentionShapes AttentionCase::shapes() const {
  AttentionShapes shapes;
  shapes.type = shape_.type;
  shapes.heads = shape_.heads;
  shapes.page_tokens = shape_.page_tokens;
  shapes.page_bytes = kv_.page_bytes;
  shapes.max_rows = batch_.num_rows;
  shapes.max_tokens = batch_.num_tokens;
  shapes.max_pages = static_cast<int>(page_ids_.size());
  return shapes;
}

std::string AttentionCase::Run(const std::function<std::string()>& call) {
  cudaMemset(out_, 0xff, q_begin_.back() * width() * SizeOf(shape_.type));
  std::string error = call();
  if (!error.empty()) return error;
  const cudaError_t status = cudaDeviceSynchronize();
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

std::vector<float> AttentionCase::Result() const {
  const size_t n = static_cast<size_t>(q_begin_.back()) * width();
  std::vector<float> out(n);
  if (shape_.type == Type::kF32) {
    cudaMemcpy(out.data(), out_, n * 4, cudaMemcpyDeviceToHost);
    return out;
  }
  std::vector<uint16_t> raw(n);
  cudaMemcpy(raw.data(), out_, n * 2, cudaMemcpyDeviceToHost);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(raw[i]) << 16;
    std::memcpy(&out[i], &bits, 4);
  }
  return out;
}

std::vector<float> AttentionCase::Reference() const {
  std::vector<float> out(static_cast<size_t>(q_begin_.back()) * width(), 0.0f);
  std::vector<AttentionRow> rows;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].kv_len == 0) continue;
    const auto* pages = reinterpret_cast<const uint32_t*>(&page_ids_[page_begin_[i]]);
    rows.push_back({q_begin_[i], rows_[i].q_len, rows_[i].kv_len - rows_[i].q_len, pages});
  }
  AttentionArgs args;
  args.qkv = host_qkv_.data();
  args.rows = rows.data();
  args.num_rows = static_cast<int>(rows.size());
  args.num_heads = shape_.heads.num_heads;
  args.num_kv_heads = shape_.heads.num_kv_heads;
  args.head_dim = shape_.heads.head_dim;
  args.slab = reinterpret_cast<const std::byte*>(host_slab_.data());
  args.page_bytes = 2 * layer_floats_ * sizeof(float);
  args.layer_offset = layer_floats_ * sizeof(float);
  args.page_tokens = shape_.page_tokens;
  args.out = out.data();
  kernels::PagedAttention(args, 16);
  return out;
}

double AttentionCase::Error() const {
  const std::vector<float> got = Result(), want = Reference();
  const size_t dim = shape_.heads.head_dim;
  double worst = 0;
  for (size_t i = 0; i < got.size(); i += dim) {
    double difference = 0, size = 0;
    for (size_t j = i; j < i + dim; ++j) {
      difference += (double{got[j]} - want[j]) * (double{got[j]} - want[j]);
      size += double{want[j]} * want[j];
    }
    const double error = size > 0 ? std::sqrt(difference / size) : difference == 0 ? 0 : INFINITY;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

}  // namespace rootstock::kernels::cuda
