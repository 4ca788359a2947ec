// Arguments of gathers, checked before anything is sent.
#pragma once

#include <numeric>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rootstock {

inline absl::Status CheckCounts(std::span<const float> in, std::span<const size_t> counts,
                                std::span<float> out, int rank, int size) {
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (counts.size() != static_cast<size_t>(size) || counts[rank] != in.size() ||
      total != out.size()) {
    return absl::InternalError(absl::StrCat("gather of ", in.size(), " into ", out.size(),
                                            " elements, counts name ", total, " for ",
                                            counts.size(), " of ", size, " ranks"));
  }
  return absl::OkStatus();
}

// `out` counts on root only.
inline absl::Status CheckGather(std::span<const float> in, std::span<const size_t> counts,
                                std::span<float> out, int rank, int size, int root) {
  if (rank == root) return CheckCounts(in, counts, out, rank, size);
  if (counts.size() != static_cast<size_t>(size) || counts[rank] != in.size()) {
    return absl::InternalError(absl::StrCat("gather of ", in.size(), " elements, not as counted"));
  }
  return absl::OkStatus();
}

}  // namespace rootstock
