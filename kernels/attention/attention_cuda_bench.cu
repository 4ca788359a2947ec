// Times of paged attention: one JSON object a line. KV is read from 32 layers in turn, which is
// more than the L2 cache holds.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pdl.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kLayers = 32;
constexpr double kReadBytesPerUs = 4.39e6;  // what a plain read kernel gets on an H200

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

__global__ void Randomize(__nv_bfloat16* to, size_t n) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32);
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    to[i] = __float2bfloat16(static_cast<float>(x & 0xffff) / 32768.0f - 1.0f);
  }
}

// As the kernel before attention in a step: small, touches qkv, lets the next one start at once.
__global__ void Touch(__nv_bfloat16* qkv, size_t n) {
  GridLaunchDependents();
  GridDependencyWait();
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    qkv[i] = __float2bfloat16(-__bfloat162float(qkv[i]));
  }
}

__nv_bfloat16* RandomMemory(size_t elements) {
  __nv_bfloat16* memory = nullptr;
  Check(cudaMalloc(&memory, elements * 2));
  Randomize<<<2048, 256>>>(memory, elements);
  Check(cudaGetLastError());
  return memory;
}

int32_t* Upload(const std::vector<int32_t>& ints) {
  int32_t* to = nullptr;
  Check(cudaMalloc(&to, ints.size() * 4));
  Check(cudaMemcpy(to, ints.data(), ints.size() * 4, cudaMemcpyHostToDevice));
  return to;
}

struct Measured {
  const char* name;
  HeadShape heads;
  int rows, q_len, kv_len;
  bool ragged = false;  // contexts from 1 to 2 · kv_len - 1
  int page_tokens = 16;
};

// A step of Measured in device memory. One thread.
class Step {
 public:
  explicit Step(const Measured& m) {
    q_begin_ = {0};
    page_begin_ = {0};
    std::mt19937 random(1);
    for (int i = 0; i < m.rows; ++i) {
      const int kv_len = m.ragged ? 1 + static_cast<int>(random() % (2 * m.kv_len - 1)) : m.kv_len;
      kv_len_.push_back(kv_len);
      q_begin_.push_back(q_begin_.back() + m.q_len);
      page_begin_.push_back(page_begin_.back() + (kv_len + m.page_tokens - 1) / m.page_tokens);
    }
    page_ids_.resize(page_begin_.back());
    std::iota(page_ids_.begin(), page_ids_.end(), 1);
    std::shuffle(page_ids_.begin(), page_ids_.end(), random);
    const HeadShape& h = m.heads;
    layer_bytes_ = size_t{4} * m.page_tokens * h.num_kv_heads * h.head_dim;
    kv.page_bytes = layer_bytes_ * kLayers;
    kv.page_tokens = m.page_tokens;
    kv.slab =
        reinterpret_cast<std::byte*>(RandomMemory((page_ids_.size() + 1) * kv.page_bytes / 2));
    const int tokens = q_begin_.back();
    qkv_elements = size_t(tokens) * (h.num_heads + 2 * h.num_kv_heads) * h.head_dim;
    qkv = RandomMemory(qkv_elements);
    out = RandomMemory(size_t(tokens) * h.num_heads * h.head_dim);
    batch.host = {q_begin_.data(), kv_len_.data(), page_begin_.data(), page_ids_.data()};
    batch.device = {Upload(q_begin_), Upload(kv_len_), Upload(page_begin_), Upload(page_ids_)};
    batch.num_rows = m.rows;
    batch.num_tokens = tokens;
    batch.max_q_len = m.q_len;
    batch.max_kv_len = *std::max_element(kv_len_.begin(), kv_len_.end());
    shapes = {Type::kBF16,
              h,
              m.page_tokens,
              kv.page_bytes,
              m.rows,
              tokens,
              static_cast<int>(page_ids_.size())};
  }
  ~Step() {
    for (const void* memory :
         {static_cast<const void*>(kv.slab), static_cast<const void*>(qkv),
          static_cast<const void*>(out), static_cast<const void*>(batch.device.q_begin),
          static_cast<const void*>(batch.device.kv_len),
          static_cast<const void*>(batch.device.page_begin),
          static_cast<const void*>(batch.device.page_ids)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // A layer's.
  double KvBytes(const HeadShape& h) const {
    return 4.0 * h.num_kv_heads * h.head_dim * std::accumulate(kv_len_.begin(), kv_len_.end(), 0.0);
  }
  double Flops(const Measured& m) const {
    const double keys = 0.5 * m.q_len * (2.0 * m.kv_len - m.q_len + 1);
    return 4.0 * m.heads.num_heads * m.heads.head_dim * keys * m.rows;
  }
  PagedKv LayerKv(int layer) const {
    PagedKv of = kv;
    of.layer_offset = layer_bytes_ * layer;
    return of;
  }

  PagedKv kv;
  __nv_bfloat16* qkv = nullptr;
  size_t qkv_elements = 0;
  __nv_bfloat16* out = nullptr;
  AttentionBatch batch;
  AttentionShapes shapes;

 private:
  std::vector<int32_t> q_begin_, kv_len_, page_begin_, page_ids_;
  size_t layer_bytes_ = 0;
};

// What a layer of the graph holds.
enum class Layer { kAttention, kTouch, kTouchAndAttention };

// Median over replays of a graph of all layers.
double MicrosecondsALayer(PagedAttention& attention, const Step& step, Layer layer) {
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  Check(attention.Plan(step.batch, stream));
  Check(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int l = 0; l < kLayers; ++l) {
    if (layer != Layer::kAttention) {
      Check(
          LaunchDependent(Touch, dim3(132), dim3(256), 0, stream, 1, step.qkv, step.qkv_elements));
    }
    if (layer == Layer::kTouch) continue;
    Check(attention.Run(step.LayerKv(l), step.qkv, step.out, stream));
  }
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(exec, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  Check(cudaGraphExecDestroy(exec));
  Check(cudaGraphDestroy(graph));
  Check(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1000.0 / kLayers;
}

void Measure(const Measured& m) {
  const Step step(m);
  std::string error;
  const auto attention = MakePagedAttention(step.shapes, &error);
  Check(error);
  const double us = MicrosecondsALayer(*attention, step, Layer::kAttention);
  std::printf(
      "{\"case\": \"%s\", \"heads\": \"%d/%d\", \"head_dim\": %d, \"rows\": %d, "
      "\"q_len\": %d, \"kv_len\": %d, \"us\": %.2f, ",
      m.name, m.heads.num_heads, m.heads.num_kv_heads, m.heads.head_dim, m.rows, m.q_len, m.kv_len,
      us);
  if (m.q_len == 1) {
    // More of it overlaps behind a small kernel than behind another attention.
    const double behind = MicrosecondsALayer(*attention, step, Layer::kTouchAndAttention) -
                          MicrosecondsALayer(*attention, step, Layer::kTouch);
    std::printf("\"read_share\": %.3f, \"us_behind_small\": %.2f}\n",
                step.KvBytes(m.heads) / kReadBytesPerUs / us, behind);
  } else {
    std::printf("\"tflops\": %.1f}\n", step.Flops(m) / us * 1e-6);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace rootstock::kernels::cuda

// An argument: only cases whose name holds it.
int main(int argc, char** argv) {
  using rootstock::kernels::cuda::HeadShape;
  using rootstock::kernels::cuda::Measured;
  const HeadShape k8B = {32, 8, 128}, k13B = {40, 40, 128}, kSmall = {32, 8, 64};
  std::vector<Measured> cases;
  for (int rows : {1, 4, 16, 64, 256}) cases.push_back({"decode", k8B, rows, 1, 1024});
  for (int rows : {1, 16, 64})
    cases.push_back({"decode pages of 32", k8B, rows, 1, 1024, false, 32});
  for (int rows : {16, 64}) cases.push_back({"decode ragged", k8B, rows, 1, 1024, true});
  for (int rows : {1, 16}) cases.push_back({"decode", k8B, rows, 1, 16384});
  for (int rows : {1, 16, 64}) cases.push_back({"decode", k13B, rows, 1, 1024});
  for (int rows : {1, 16, 64}) cases.push_back({"decode", kSmall, rows, 1, 1024});
  for (int kv_len : {2048, 8192}) {
    cases.push_back({"prefill", k8B, 1, 2048, kv_len});
    cases.push_back({"prefill", kSmall, 1, 2048, kv_len});
  }
  cases.push_back({"prefill 16 prompts", k8B, 16, 1024, 1024});
  const std::string only = argc > 1 ? argv[1] : "";
  for (const Measured& m : cases) {
    if (std::string(m.name).find(only) != std::string::npos) rootstock::kernels::cuda::Measure(m);
  }
}
