#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pdl.cuh"
#include "kernels/linear/cuda_test_data.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr uint32_t kX = 1, kW = 2, kBias = 3;

__host__ __device__ uint64_t Hash(uint64_t i, uint32_t seed) {  // splitmix64
  uint64_t z = i + (static_cast<uint64_t>(seed) << 40) + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__host__ __device__ float Value(float, uint64_t i, uint32_t seed) {
  return static_cast<float>(Hash(i, seed) >> 40) / 8388608.0f - 1.0f;
}

// 8 bits over seven binades.
__host__ __device__ float Value(__nv_bfloat16, uint64_t i, uint32_t seed) {
  const uint64_t hash = Hash(i, seed);
  const float scale = 1.0f / static_cast<float>(128 << (hash & 6));
  return (static_cast<float>(hash >> 56) - 128.0f) * scale;
}

__device__ void Put(float* p, float v) { *p = v; }
__device__ void Put(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }

template <typename T>
__global__ void Fill(T* out, size_t n, uint32_t seed, float scale) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    Put(out + i, scale * Value(T(), i, seed));
  }
}

__device__ double Get(Type type, const void* p, size_t i) {
  if (type == Type::kF32) return static_cast<const float*>(p)[i];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}

// sums: Σ (a − b)², Σ b², max |a − b| of a thread.
__global__ void Sums(Type a_type, const void* a, Type b_type, const void* b, size_t n,
                     double* sums) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double error = 0, norm = 0, largest = 0;
  for (size_t i = first; i < n; i += stride) {
    const double d = Get(a_type, a, i) - Get(b_type, b, i);
    error += d * d;
    norm += Get(b_type, b, i) * Get(b_type, b, i);
    if (!(fabs(d) <= largest)) largest = fabs(d);
  }
  sums[first * 3] = error;
  sums[first * 3 + 1] = norm;
  sums[first * 3 + 2] = largest;
}

__global__ void CopyLateKernel(const uint4* from, uint4* to, size_t count) {
  constexpr uint64_t kLateNanoseconds = 50000;
  GridLaunchDependents();
  GridDependencyWait();
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < kLateNanoseconds);
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

double Expected(const LinearArgs& args, int row, int col) {
  double sum = args.bias == nullptr ? 0.0 : TestValue(Type::kF32, col, kBias);
  for (int i = 0; i < args.k; ++i) {
    sum += double{TestValue(args.type, static_cast<uint64_t>(row) * args.k + i, kX)} *
           TestValue(args.type, static_cast<uint64_t>(col) * args.k + i, kW);
  }
  return sum;
}

}  // namespace

float TestValue(Type type, uint64_t i, uint32_t seed) {
  return type == Type::kF32 ? Value(0.0f, i, seed) : Value(__nv_bfloat16(), i, seed);
}

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

void FillRandom(Type type, void* out, size_t n, uint32_t seed, float scale, cudaStream_t stream) {
  if (type == Type::kF32) {
    Fill<<<1024, 256, 0, stream>>>(static_cast<float*>(out), n, seed, scale);
  } else {
    Fill<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), n, seed, scale);
  }
  CheckCuda(cudaGetLastError(), "fill");
}

cudaError_t CopyLate(const void* from, void* to, size_t bytes, cudaStream_t stream) {
  return LaunchDependent(CopyLateKernel, 1, 1024, 0, stream, 1, static_cast<const uint4*>(from),
                         static_cast<uint4*>(to), bytes / sizeof(uint4));
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  CheckCuda(cudaMalloc(&data_, bytes), "cudaMalloc");
  Poison();
}

Buffer::~Buffer() { cudaFree(data_); }

void Buffer::Poison() { CheckCuda(cudaMemset(data_, 0xff, bytes_), "cudaMemset"); }

TestCase::TestCase(Type type, Type out_type, int m, int n, int k, bool biased)
    : x(SizeOf(type) * m * k),
      w(SizeOf(type) * n * k),
      bias(sizeof(float) * n),
      out(SizeOf(out_type) * m * n) {
  args = {type, x.get(), m, w.get(), n, k, nullptr, out_type, out.get()};
  FillRandom(type, x.get(), static_cast<size_t>(m) * k, kX, 1.0f, nullptr);
  FillRandom(type, w.get(), static_cast<size_t>(n) * k, kW, 1.0f, nullptr);
  FillRandom(Type::kF32, bias.get(), n, kBias, 1.0f, nullptr);
  if (biased) args.bias = static_cast<const float*>(bias.get());
}

std::vector<float> ReadOut(const LinearArgs& args) {
  const size_t n = static_cast<size_t>(args.m) * args.n;
  std::vector<char> bytes(n * SizeOf(args.out_type));
  CheckCuda(cudaMemcpy(bytes.data(), args.out, bytes.size(), cudaMemcpyDeviceToHost), "read");
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits = 0;
    if (args.out_type == Type::kF32) {
      std::memcpy(&bits, &bytes[i * 4], 4);
    } else {
      uint16_t high = 0;
      std::memcpy(&high, &bytes[i * 2], 2);
      bits = static_cast<uint32_t>(high) << 16;
    }
    std::memcpy(&values[i], &bits, 4);
  }
  return values;
}

// Up to `samples` outputs against sums in f64.
double RelativeError(const LinearArgs& args, int samples) {
  const std::vector<float> got = ReadOut(args);
  const size_t stride = std::max<size_t>(1, got.size() / samples) | 1;
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); i += stride) {
    const double want = Expected(args, i / args.n, i % args.n);
    error += (got[i] - want) * (got[i] - want);
    norm += want * want;
  }
  return std::sqrt(error / norm);
}

Difference Compare(Type a_type, const void* a, Type b_type, const void* b, size_t n) {
  constexpr int kBlocks = 64, kThreads = 128;
  Buffer sums(sizeof(double) * 3 * kBlocks * kThreads);
  Sums<<<kBlocks, kThreads>>>(a_type, a, b_type, b, n, static_cast<double*>(sums.get()));
  double host[kBlocks * kThreads][3];
  CheckCuda(cudaMemcpy(host, sums.get(), sizeof(host), cudaMemcpyDeviceToHost), "compare");
  double error = 0, norm = 0, largest = 0;
  for (const auto& sum : host) {
    error += sum[0];
    norm += sum[1];
    if (!(sum[2] <= largest)) largest = sum[2];
  }
  return {std::sqrt(error) / std::sqrt(norm), largest};
}

}  // namespace rootstock::kernels::cuda
