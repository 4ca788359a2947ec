// Loads, stores and conversions of the compute types: f32 and bf16 outside, f32 inside.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

namespace rootstock::kernels::cuda {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Two bf16 of one register, the first in its low half.
__device__ __forceinline__ float2 UnpackBf16(uint32_t x) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// 16 bytes that no kernel writes while this one runs. Volatile: stays before a wait that follows.
__device__ __forceinline__ uint4 LoadConstant16(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

// 16 bytes past the first cache, which may hold what was there before.
__device__ __forceinline__ uint4 LoadL2(const void* p) {
  uint4 x;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

// What the kernels of every layer read again, such as the tables of a step and of its adapters. The
// second cache is asked to keep it while the weights stream through: else each such load, often one
// of a chain, waits for memory behind them. No kernel writes it. Volatile: as LoadConstant16.
template <typename T>
__device__ __forceinline__ T LoadKept(const T* p) {
  static_assert(sizeof(T) % 4 == 0);
  constexpr int kWords = sizeof(T) / (alignof(T) >= 8 ? 8 : 4);
  uint64_t keep;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  T out;
  if constexpr (alignof(T) >= 8) {
    uint64_t word[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile("ld.global.nc.L2::cache_hint.b64 %0, [%1], %2;"
                   : "=l"(word[i])
                   : "l"(reinterpret_cast<const uint64_t*>(p) + i), "l"(keep));
    }
    memcpy(&out, word, sizeof(T));
  } else {
    uint32_t word[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile("ld.global.nc.L2::cache_hint.b32 %0, [%1], %2;"
                   : "=r"(word[i])
                   : "l"(reinterpret_cast<const uint32_t*>(p) + i), "l"(keep));
    }
    memcpy(&out, word, sizeof(T));
  }
  return out;
}

// To the first cache: for what is loaded soon, when registers are short.
__device__ __forceinline__ void PrefetchL1(const void* p) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

__device__ __forceinline__ void PrefetchL2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Eight floats, as LoadL2.
__device__ __forceinline__ void LoadL2x8(const float* p, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const uint4 raw = LoadL2(p + i);
    x[i] = __uint_as_float(raw.x), x[i + 1] = __uint_as_float(raw.y);
    x[i + 2] = __uint_as_float(raw.z), x[i + 3] = __uint_as_float(raw.w);
  }
}

// Eight elements at `p`, aligned to 16 bytes.
__device__ __forceinline__ void Load8(const float* p, float (&x)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0];
  const float4 b = reinterpret_cast<const float4*>(p)[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

__device__ __forceinline__ void Unpack8(const uint4& raw, float (&x)[8]) {
  const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = UnpackBf16(word[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void Load8(const __nv_bfloat16* p, float (&x)[8]) {
  Unpack8(*reinterpret_cast<const uint4*>(p), x);
}

__device__ __forceinline__ void Store8(float* p, const float (&x)[8]) {
  reinterpret_cast<float4*>(p)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(p)[1] = {x[4], x[5], x[6], x[7]};
}

__device__ __forceinline__ void Store8(__nv_bfloat16* p, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(p) = {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
                                  PackBf16(x[6], x[7])};
}

__device__ __forceinline__ float SiluMulOne(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// Sum over the warp, the same in every lane; the order is fixed.
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace rootstock::kernels::cuda
