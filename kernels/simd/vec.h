// A vector of floats as wide as the instruction set's registers. For SIMD files only: everything
// here is static, so each variant keeps its own copy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock::kernels::ROOTSTOCK_ISA {

#if defined(ROOTSTOCK_ISA_avx512)
constexpr int kLanes = 16;
constexpr int kAccumulators = 24;  // vector registers that inner loops may fill
#elif defined(ROOTSTOCK_ISA_avx2)
constexpr int kLanes = 8;
constexpr int kAccumulators = 12;
#else
constexpr int kLanes = 4;
constexpr int kAccumulators = 12;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecHalf __attribute__((vector_size(kLanes * 2)));
typedef uint32_t VecWord __attribute__((vector_size(kLanes * 4)));

#define ROOTSTOCK_INLINE static inline __attribute__((always_inline))
#define ROOTSTOCK_INLINE_MEMBER inline __attribute__((always_inline))

ROOTSTOCK_INLINE Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// bf16 widened: exact.
ROOTSTOCK_INLINE Vec Load(const uint16_t* p) {
  VecHalf h;
  __builtin_memcpy(&h, p, sizeof(h));
  const VecWord w = __builtin_convertvector(h, VecWord) << 16;
  Vec v;
  __builtin_memcpy(&v, &w, sizeof(v));
  return v;
}

ROOTSTOCK_INLINE void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
ROOTSTOCK_INLINE Vec Splat(float x) { return x - Vec{}; }

ROOTSTOCK_INLINE float Widen(float x) { return x; }
ROOTSTOCK_INLINE float Widen(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}

// Sum of the lanes, halves first: always the same order.
ROOTSTOCK_INLINE float Sum(Vec v) {
#if defined(ROOTSTOCK_ISA_avx512)
  typedef float Half __attribute__((vector_size(32)));
  const Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(ROOTSTOCK_ISA_avx2)
  const Vec h = v;
#endif
  typedef float Quarter __attribute__((vector_size(16)));
#if defined(ROOTSTOCK_ISA_avx512) || defined(ROOTSTOCK_ISA_avx2)
  const Quarter q =
      __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
  const Quarter q = v;
#endif
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// exp(x), relative error about 1e-7, for x in [-60, 60]; below it 0, above it exp(60); NaN stays.
// The narrow range keeps products with the result out of the subnormals, which are 100 times
// slower.
ROOTSTOCK_INLINE Vec Exp(Vec x) {
  const Vec low = Splat(-60.0f);
  const Vec high = Splat(60.0f);
  const Vec c = x < low ? low : x > high ? high : x;
  const Vec magic = Splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer
  const Vec shifted = c * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  VecInt bits;
  __builtin_memcpy(&bits, &p, sizeof(bits));
  bits += __builtin_convertvector(n, VecInt) << 23;
  Vec y;
  __builtin_memcpy(&y, &bits, sizeof(y));
  y = x < low ? Vec{} : y;
  return x == x ? y : x;
}

}  // namespace rootstock::kernels::ROOTSTOCK_ISA
