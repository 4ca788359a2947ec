// Rows are padded with zeros, so that kernels read whole vectors.
#pragma once

#include <cstddef>

namespace rootstock {

constexpr size_t kRowPadding = 16;  // bytes: a row's length is a multiple

}  // namespace rootstock
