// Sums of tiles to sums of chunks, in the decode kernel.
#pragma once

#include "kernels/attention/decode_schedule.cuh"
#include "kernels/attention/decode_tile.cuh"

namespace rootstock::kernels::cuda {

// Unnormalised output of a few positions: 4 dims of one head. A thread has units threadIdx.x and
// threadIdx.x + 128 of the group's [heads, head_dim / 4].
struct Part {
  float top = kNoScore;
  float sum = 0.0f;
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};
};

// A struct: nvcc 13.0 leaves an array of arrays of Part uninitialised.
template <int kUnits>
struct PartsOf {
  Part unit[kUnits];
};

// into + x, `into` being to the left.
__device__ __forceinline__ void Merge(Part& into, const Part& x) {
  const float top = fmaxf(into.top, x.top);
  const float a = exp2f(into.top - top), b = exp2f(x.top - top);
  into.top = top;
  into.sum = fmaf(into.sum, a, x.sum * b);
  into.o.x = fmaf(into.o.x, a, x.o.x * b);
  into.o.y = fmaf(into.o.y, a, x.o.y * b);
  into.o.z = fmaf(into.o.z, a, x.o.z * b);
  into.o.w = fmaf(into.o.w, a, x.o.w * b);
}

// The four tiles of a chunk meet in shared memory.
template <int kDim>
class TileExchange {
 public:
  static constexpr int kStride = kDim + 8;  // floats a head
  static constexpr size_t Bytes(int group) {
    return kWarps * (size_t(group) * kStride * sizeof(float) + kMaxGroup * sizeof(float2));
  }
  __device__ TileExchange(void* memory, int group)
      : group_(group),
        sums_(static_cast<float*>(memory)),
        softmax_(reinterpret_cast<float2*>(sums_ + kWarps * group * kStride)) {}
  __device__ void* end() const { return softmax_ + kWarps * kMaxGroup; }

  // Between two barriers: all have taken the chunk before, and this one is there.
  __device__ __forceinline__ void Put(const TileSums<kDim>& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int head = 2 * t + j;
      if (head >= group_) continue;
      float* to = Sums(threadIdx.x / 32) + head * kStride + 8 * g;
#pragma unroll
      for (int h = 0; h < kDim / 64; ++h) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float (&x)[4] = sums.o[4 * h + i], (&y)[4] = sums.o[4 * h + i + 1];
          *reinterpret_cast<float4*>(to + 64 * h + 2 * i) =
              make_float4(x[j], x[j + 2], y[j], y[j + 2]);
        }
      }
      if (g == 0) Softmax(threadIdx.x / 32)[head] = make_float2(sums.top[j], sums.sum[j]);
    }
  }
  __device__ __forceinline__ void PutNothing() {
    float* to = Sums(threadIdx.x / 32);
    for (int i = threadIdx.x % 32; i < group_ * kStride; i += 32) to[i] = 0.0f;
    if (threadIdx.x % 32 < kMaxGroup) {
      Softmax(threadIdx.x / 32)[threadIdx.x % 32] = make_float2(kNoScore, 0.0f);
    }
  }
  // The chunk's sum, after a barrier.
  template <int kUnits>
  __device__ __forceinline__ void Take(PartsOf<kUnits>& chunk) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
      if (head >= group_) continue;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 softmax = Softmax(w)[head];
        const float* from = Sums(w) + head * kStride + unit % (kDim / 4) * 4;
        Merge(chunk.unit[u], {softmax.x, softmax.y, *reinterpret_cast<const float4*>(from)});
      }
    }
  }

 private:
  __device__ float* Sums(int warp) const { return sums_ + warp * group_ * kStride; }
  __device__ float2* Softmax(int warp) const { return softmax_ + warp * kMaxGroup; }

  int group_;
  float* sums_;
  float2* softmax_;
};

}  // namespace rootstock::kernels::cuda
