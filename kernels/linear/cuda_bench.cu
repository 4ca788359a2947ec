#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/linear/cuda_bench.h"

namespace rootstock::kernels::cuda {
namespace {

__global__ void ReadAll(const uint4* in, size_t n, uint32_t* out) {
  uint32_t sum = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < n; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = in[i + j * stride];
#pragma unroll
    for (int j = 0; j < 8; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678) *out = sum;  // keeps the reads
}

// Eight values a thread and round; n ≥ k.
__global__ void Squash(const uint4* in, int n, uint4* out, int k) {
  GridLaunchDependents();
  GridDependencyWait();
  const uint4* row = in + static_cast<size_t>(blockIdx.x) * n / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < k / 8; i += blockDim.x) {
    uint4 v = row[i];
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&v);
    for (int j = 0; j < 4; ++j) {
      const float2 f = __bfloat1622float2(pairs[j]);
      pairs[j] = __floats2bfloat162_rn(f.x / (1.0f + fabsf(f.x)), f.y / (1.0f + fabsf(f.y)));
    }
    out[static_cast<size_t>(blockIdx.x) * k / 8 + i] = v;
  }
}

class Stream {
 public:
  Stream() { CheckCuda(cudaStreamCreate(&stream_), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

double Replay(cudaGraphExec_t exec, cudaStream_t stream) {
  constexpr int kWarm = 2, kReplays = 7;
  cudaEvent_t begin, end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < kWarm + kReplays; ++i) {
    CheckCuda(cudaEventRecord(begin, stream), "record");
    CheckCuda(cudaGraphLaunch(exec, stream), "launch");
    CheckCuda(cudaEventRecord(end, stream), "record");
    CheckCuda(cudaEventSynchronize(end), "replay");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= kWarm) times.push_back(ms * 1000.0f);
  }
  CheckCuda(cudaEventDestroy(begin), "destroy");
  CheckCuda(cudaEventDestroy(end), "destroy");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

double ReadBandwidth() {
  constexpr size_t kBytes = size_t{4} << 30;
  Buffer in(kBytes), out(4);
  FillRandom(Type::kF32, in.get(), kBytes / 4, 5, 1.0f, nullptr);
  const double us = GraphTime([&](cudaStream_t stream) {
    ReadAll<<<132 * 8, 512, 0, stream>>>(static_cast<const uint4*>(in.get()), kBytes / 16,
                                         static_cast<uint32_t*>(out.get()));
    return std::string();
  });
  return kBytes / us * 1e6;
}

double GraphTime(const std::function<std::string(cudaStream_t)>& enqueue) {
  Stream stream;
  std::string error = enqueue(stream.get());  // loads kernels, finds algorithms
  CheckCuda(cudaStreamSynchronize(stream.get()), "first run");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CheckCuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin");
  if (error.empty()) error = enqueue(stream.get());
  CheckCuda(cudaStreamEndCapture(stream.get(), &graph), "end");
  double us = -1;
  if (error.empty()) {
    CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    us = Replay(exec, stream.get());
    CheckCuda(cudaGraphExecDestroy(exec), "destroy");
  } else {
    std::fprintf(stderr, "%s\n", error.c_str());
  }
  CheckCuda(cudaGraphDestroy(graph), "destroy");
  return us;
}

std::string Between(const LinearArgs& from, const LinearArgs& to, bool dependent,
                    cudaStream_t stream) {
  constexpr int kThreads = 512;
  const auto* in = static_cast<const uint4*>(from.out);
  auto* out = static_cast<uint4*>(const_cast<void*>(to.x));
  cudaError_t error = cudaSuccess;
  if (dependent) {
    error =
        LaunchDependent(Squash, dim3(from.m), dim3(kThreads), 0, stream, 1, in, from.n, out, to.k);
  } else {
    Squash<<<from.m, kThreads, 0, stream>>>(in, from.n, out, to.k);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

const std::vector<Model>& Models() {
  static const std::vector<Model> models = {
      {"8B",
       {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}}},
      {"13B",
       {{"qkv", 15360, 5120}, {"o", 5120, 5120}, {"gate_up", 27648, 5120}, {"down", 5120, 13824}}},
      {"70B/TP8",
       {{"qkv", 1280, 8192}, {"o", 8192, 1024}, {"gate_up", 7168, 8192}, {"down", 8192, 3584}}},
      {"8B head", {{"head", 128256, 4096}}},
      {"13B head", {{"head", 32000, 5120}}},
  };
  return models;
}

Tensors::Tensors(const Model& model, int copies, int max_m) : model_(model) {
  for (const Site& site : model.sites) {
    const size_t weights = static_cast<size_t>(site.n) * site.k;
    OfSite& tensors = sites_.emplace_back();
    for (int i = 0; i < copies; ++i) {
      tensors.w.push_back(std::make_unique<Buffer>(2 * weights));
      FillRandom(Type::kBF16, tensors.w.back()->get(), weights, 10 + i, 0.05f, nullptr);
    }
    const size_t inputs = static_cast<size_t>(max_m) * site.k;
    tensors.x = std::make_unique<Buffer>(2 * inputs);
    FillRandom(Type::kBF16, tensors.x->get(), inputs, 1, 1.0f, nullptr);
    tensors.out = std::make_unique<Buffer>(size_t{2} * max_m * site.n);
  }
  CheckCuda(cudaDeviceSynchronize(), "fill");
}

LinearArgs Tensors::Args(int site, int layer, int m) const {
  const OfSite& tensors = sites_[site];
  return {.type = Type::kBF16,
          .x = tensors.x->get(),
          .m = m,
          .w = tensors.w[layer % tensors.w.size()]->get(),
          .n = model_.sites[site].n,
          .k = model_.sites[site].k,
          .out_type = Type::kBF16,
          .out = tensors.out->get()};
}

}  // namespace rootstock::kernels::cuda
