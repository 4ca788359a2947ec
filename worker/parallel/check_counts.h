// Arguments of collectives, checked before anything is sent.
#pragma once

#include <numeric>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"

namespace rootstock {

inline absl::Status CheckCounts(std::span<const size_t> counts, int size) {
  if (counts.size() == static_cast<size_t>(size)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("gather with counts of ", counts.size(), " ranks in a group of ", size));
}

inline absl::Status CheckHostSum(DType type) {
  if (type == DType::kF32) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("all-reduce of ", DTypeName(type), " on the host"));
}

inline size_t TotalOf(std::span<const size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

}  // namespace rootstock
