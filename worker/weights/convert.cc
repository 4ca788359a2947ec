#include "worker/weights/convert.h"

#include <cstring>

#include "common/base/half.h"

namespace rootstock {
namespace {

template <DType from>
void Convert(const uint8_t* in, size_t n, void* out, DType to) {
  if (to == DType::kF32) {
    float* values = static_cast<float*>(out);
    for (size_t i = 0; i < n; ++i) values[i] = LoadFloat(in, from, i);
  } else {
    uint16_t* values = static_cast<uint16_t*>(out);
    for (size_t i = 0; i < n; ++i) values[i] = FloatToBF16(LoadFloat(in, from, i));
  }
}

}  // namespace

void ConvertElements(const uint8_t* in, DType from, size_t n, void* out, DType to) {
  if (from == to) {
    std::memcpy(out, in, n * DTypeBytes(to));
  } else if (from == DType::kF32) {
    Convert<DType::kF32>(in, n, out, to);
  } else if (from == DType::kBF16) {
    Convert<DType::kBF16>(in, n, out, to);
  } else {
    Convert<DType::kF16>(in, n, out, to);
  }
}

}  // namespace rootstock
