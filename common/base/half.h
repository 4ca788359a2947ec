// Conversions between 16-bit and 32-bit floating point. Rounding is to nearest even.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/base/dtype.h"

namespace rootstock {

inline float BF16ToFloat(uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); }

inline float F16ToFloat(uint16_t v) {
  const uint32_t sign = uint32_t{v} >> 15 << 31;
  const uint32_t magnitude = v & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
  // Shifting into float32's fields and scaling by 2^112 is exact, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// NaN stays NaN; what is beyond bf16's range becomes infinity.
inline uint16_t FloatToBF16(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Element `i` of a packed array, at any alignment.
inline float LoadFloat(const uint8_t* array, DType dtype, size_t i) {
  if (dtype == DType::kF32) {
    float v = 0;
    std::memcpy(&v, array + 4 * i, 4);
    return v;
  }
  uint16_t v = 0;
  std::memcpy(&v, array + 2 * i, 2);
  return dtype == DType::kBF16 ? BF16ToFloat(v) : F16ToFloat(v);
}

}  // namespace rootstock
