#include "worker/weights/convert.h"

#include <cstring>

namespace rootstock {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
T At(const uint8_t* in, size_t i) {
  T value;
  std::memcpy(&value, in + i * sizeof(T), sizeof(T));
  return value;
}

template <typename Read>
void Each(size_t n, void* out, DType to, Read read) {
  if (to == DType::kF32) {
    float* values = static_cast<float*>(out);
    for (size_t i = 0; i < n; ++i) values[i] = read(i);
  } else {
    uint16_t* values = static_cast<uint16_t*>(out);
    for (size_t i = 0; i < n; ++i) values[i] = FloatToBf16(read(i));
  }
}

}  // namespace

float Bf16ToFloat(uint16_t bits) { return FromBits(uint32_t{bits} << 16); }

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  if (exponent == 31) return FromBits(sign | 0x7f800000u | (mantissa << 13));
  return FromBits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}

void ConvertElements(const uint8_t* in, DType from, size_t n, void* out, DType to) {
  if (from == to) {
    std::memcpy(out, in, n * DTypeBytes(to));
  } else if (from == DType::kF32) {
    Each(n, out, to, [in](size_t i) { return At<float>(in, i); });
  } else if (from == DType::kBF16) {
    Each(n, out, to, [in](size_t i) { return Bf16ToFloat(At<uint16_t>(in, i)); });
  } else {
    Each(n, out, to, [in](size_t i) { return F16ToFloat(At<uint16_t>(in, i)); });
  }
}

}  // namespace rootstock
