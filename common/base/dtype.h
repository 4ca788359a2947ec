// Element types of tensors in files and on devices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr size_t DTypeBytes(DType t) { return t == DType::kF32 ? 4 : 2; }
constexpr const char* DTypeName(DType t) {
  return t == DType::kF32 ? "f32" : t == DType::kBF16 ? "bf16" : "f16";
}

}  // namespace rootstock
