#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/attention/attention_bench_step.h"
#include "kernels/lora/lora_cuda.h"
#include "kernels/rope/rope_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kWeightCopies = 4;

__global__ void Randomize(__nv_bfloat16* to, size_t n, float spread) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32);
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    to[i] = __float2bfloat16((static_cast<float>(x & 0xffff) / 32768.0f - 1.0f) * spread);
  }
}

}  // namespace

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void Check(const std::string& error) {
  if (error.empty()) return;
  std::fprintf(stderr, "%s\n", error.c_str());
  std::exit(1);
}

__nv_bfloat16* RandomMemory(size_t elements, float spread) {
  __nv_bfloat16* memory = nullptr;
  Check(cudaMalloc(&memory, elements * 2));
  Randomize<<<2048, 256>>>(memory, elements, spread);
  Check(cudaGetLastError());
  return memory;
}

template <typename T>
T* BenchStep::Upload(const std::vector<T>& from) {
  T* to = nullptr;
  Check(cudaMalloc(&to, from.size() * sizeof(T)));
  Check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  owned_.push_back(to);
  return to;
}

BenchStep::BenchStep(const Measured& m, const Pool& pool) {
  q_begin_ = {0};
  page_begin_ = {0};
  std::mt19937 random(1);
  for (int i = 0; i < m.rows; ++i) {
    const int kv_len = m.ragged ? 1 + static_cast<int>(random() % (2 * m.kv_len - 1)) : m.kv_len;
    kv_len_.push_back(kv_len);
    q_begin_.push_back(q_begin_.back() + m.q_len);
    page_begin_.push_back(page_begin_.back() + (kv_len + m.page_tokens - 1) / m.page_tokens);
  }
  const HeadShape& h = m.heads;
  layer_bytes_ = size_t{4} * m.page_tokens * h.num_kv_heads * h.head_dim;
  kv.page_bytes = layer_bytes_ * kBenchLayers;
  kv.page_tokens = m.page_tokens;
  kv.slab = pool.slab();
  const size_t used = page_begin_.back();
  const size_t wanted = (size_t{1} << 30) * m.pool_gb / kv.page_bytes;
  const size_t pages = std::max(used, std::min(wanted, pool.bytes() / kv.page_bytes - 1));
  if ((pages + 1) * kv.page_bytes > pool.bytes()) Check(std::string("the pool is too small"));
  page_ids_.resize(pages);
  std::iota(page_ids_.begin(), page_ids_.end(), 1);
  std::shuffle(page_ids_.begin(), page_ids_.end(), random);
  page_ids_.resize(used);
  const int tokens = q_begin_.back();
  qkv_elements = size_t(tokens) * (h.num_heads + 2 * h.num_kv_heads) * h.head_dim;
  qkv = RandomMemory(qkv_elements);
  out = RandomMemory(size_t(tokens) * h.num_heads * h.head_dim);
  owned_ = {qkv, out};
  std::vector<int32_t> last;
  std::vector<uint32_t> last_page;
  for (int i = 0; i < m.rows; ++i) {
    last.push_back(kv_len_[i] - 1);
    last_page.push_back(page_ids_[page_begin_[i + 1] - 1]);
  }
  positions = Upload(last);
  token_pages = Upload(last_page);
  max_positions = *std::max_element(kv_len_.begin(), kv_len_.end());
  batch.host = {q_begin_.data(), kv_len_.data(), page_begin_.data(), page_ids_.data()};
  batch.device = {Upload(q_begin_), Upload(kv_len_), Upload(page_begin_), Upload(page_ids_)};
  batch.num_rows = m.rows;
  batch.num_tokens = tokens;
  batch.max_q_len = m.q_len;
  shapes = {Type::kBF16, h, m.page_tokens, kv.page_bytes, m.rows, tokens, static_cast<int>(used)};
}

BenchStep::~BenchStep() {
  for (void* memory : owned_) cudaFree(memory);
}

double BenchStep::KvBytes() const {
  const HeadShape& h = shapes.heads;
  return 4.0 * h.num_kv_heads * h.head_dim * std::accumulate(kv_len_.begin(), kv_len_.end(), 0.0);
}

double BenchStep::Flops(const Measured& m) const {
  const double keys = 0.5 * m.q_len * (2.0 * m.kv_len - m.q_len + 1);
  return 4.0 * m.heads.num_heads * m.heads.head_dim * keys * m.rows;
}

PagedKv BenchStep::LayerKv(int layer) const {
  PagedKv of = kv;
  of.layer_offset = layer_bytes_ * layer;
  return of;
}

Neighbours::Neighbours(const BenchStep& step) : step_(step) {
  std::string error;
  linear_ = MakeLinear(&error);
  Check(error);
  const HeadShape& h = step.shapes.heads;
  const size_t width = size_t(h.num_heads) * h.head_dim;
  for (int i = 0; i < kWeightCopies; ++i) {
    qkv_weights_.push_back(Owned(width * (h.num_heads + 2 * h.num_kv_heads) * h.head_dim, 0.03f));
    o_weights_.push_back(Owned(width * width, 0.03f));
  }
  x_ = Owned(step.batch.num_rows * width, 1.0f);
  y_ = Owned(step.batch.num_rows * width, 1.0f);
  const std::vector<float> table(size_t(step.max_positions) * h.head_dim / 2, 0.7f);
  float* to = nullptr;
  Check(cudaMalloc(&to, table.size() * sizeof(float)));
  Check(cudaMemcpy(to, table.data(), table.size() * sizeof(float), cudaMemcpyHostToDevice));
  owned_.push_back(to);
  cos_ = to;
  // Libraries are set up outside of captures.
  Before(0, nullptr);
  After(0, nullptr);
  Check(cudaDeviceSynchronize());
}

Neighbours::~Neighbours() {
  for (void* memory : owned_) cudaFree(memory);
}

__nv_bfloat16* Neighbours::Owned(size_t elements, float spread) {
  __nv_bfloat16* memory = RandomMemory(elements, spread);
  owned_.push_back(memory);
  return memory;
}

void Neighbours::Before(int layer, cudaStream_t stream) {
  const HeadShape& h = step_.shapes.heads;
  LinearArgs linear;
  linear.x = x_;
  linear.m = step_.batch.num_rows;
  linear.w = qkv_weights_[layer % kWeightCopies];
  linear.n = (h.num_heads + 2 * h.num_kv_heads) * h.head_dim;
  linear.k = h.num_heads * h.head_dim;
  linear.out = step_.qkv;
  Check(linear_->Run(linear, stream));
  RopeArgs rope;
  rope.qkv = step_.qkv;
  rope.positions = step_.positions;
  rope.pages = step_.token_pages;
  rope.tokens = step_.batch.num_rows;
  rope.heads = h;
  rope.cos = cos_;
  rope.sin = cos_;
  rope.kv = step_.LayerKv(layer);
  RopeWriteKv(rope, LoraStep{}, LoraTargets{}, stream);
}

void Neighbours::After(int layer, cudaStream_t stream) {
  const HeadShape& h = step_.shapes.heads;
  LinearArgs linear;
  linear.x = step_.out;
  linear.m = step_.batch.num_rows;
  linear.w = o_weights_[layer % kWeightCopies];
  linear.n = linear.k = h.num_heads * h.head_dim;
  linear.out = y_;
  Check(linear_->Run(linear, stream));
}

}  // namespace rootstock::kernels::cuda
