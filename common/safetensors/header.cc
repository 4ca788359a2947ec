#include "common/safetensors/header.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/safetensors/header_sax.h"

namespace rootstock {
namespace {

// Tensors sorted by offset must follow each other and end where the data ends.
absl::Status CheckOffsets(const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                          const std::string& file) {
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& t : tensors) by_offset.push_back(&t);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  uint64_t last = 0;
  for (const TensorInfo* t : by_offset) last = std::max(last, t->end);
  if (last > data_bytes) {
    return InvalidField(Reason::kTruncated, file, "",
                        absl::StrCat("truncated: the header promises ", last,
                                     " bytes of tensors, the file has ", data_bytes));
  }
  uint64_t at = 0;
  for (const TensorInfo* t : by_offset) {
    if (t->begin != at) {
      return InvalidField(Reason::kOverlapOrHole, file, t->name,
                          absl::StrCat("data offset ", t->begin, " should be ", at,
                                       ": tensors overlap or leave a hole"));
    }
    at = t->end;
  }
  if (at != data_bytes) {
    return InvalidField(Reason::kOverlapOrHole, file, "",
                        absl::StrCat("data offsets end at ", at, ", the data at ", data_bytes));
  }
  return absl::OkStatus();
}

// Span and shape must agree; the product is checked for overflow.
absl::Status CheckSize(const TensorInfo& t, const std::string& file) {
  uint64_t bytes = DTypeBytes(t.dtype);
  for (const int64_t d : t.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes)) {
      return InvalidField(Reason::kHeaderInvalid, file, t.name,
                          "header: the product of its shape overflows");
    }
  }
  if (t.end < t.begin || t.end - t.begin != bytes) {
    return InvalidField(Reason::kHeaderInvalid, file, t.name,
                        absl::StrCat("header: data offsets ", t.begin, " to ", t.end, " for ",
                                     bytes, " bytes of shape"));
  }
  return absl::OkStatus();
}

}  // namespace

const TensorInfo* SafetensorsHeader::Find(const std::string& name) const {
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorInfo& t, const std::string& n) { return t.name < n; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::span<const uint8_t> prefix,
                                                uint64_t file_bytes, const std::string& file,
                                                const SafetensorsLimits& limits) {
  if (file_bytes > limits.max_file_bytes) {
    return InvalidField(Reason::kSizeLimit, file, "",
                        absl::StrCat("has ", file_bytes, " bytes, at most ", limits.max_file_bytes,
                                     " are accepted"));
  }
  if (file_bytes < kSafetensorsPrefixBytes || prefix.size() < kSafetensorsPrefixBytes) {
    return InvalidField(
        Reason::kTruncated, file, "",
        absl::StrCat("truncated: ", file_bytes, " bytes can't hold the header's length"));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];  // little-endian
  if (length > limits.max_header_bytes) {
    return InvalidField(Reason::kHeaderTooLarge, file, "",
                        absl::StrCat("header of ", length, " bytes, at most ",
                                     limits.max_header_bytes, " are read"));
  }
  if (length > file_bytes - kSafetensorsPrefixBytes) {
    return InvalidField(
        Reason::kTruncated, file, "",
        absl::StrCat("truncated: header of ", length, " bytes in a file of ", file_bytes));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const uint8_t> json,
                                                         uint64_t data_bytes,
                                                         const std::string& file,
                                                         const SafetensorsLimits& limits) {
  SafetensorsHeader out;
  RETURN_IF_ERROR(ReadHeaderJson(json, file, limits, out));
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (size_t i = 0; i < out.tensors.size(); ++i) {
    if (i > 0 && out.tensors[i].name == out.tensors[i - 1].name) {
      return InvalidField(Reason::kDuplicate, file, out.tensors[i].name,
                          "header has this tensor twice");
    }
    RETURN_IF_ERROR(CheckSize(out.tensors[i], file));
  }
  RETURN_IF_ERROR(CheckOffsets(out.tensors, data_bytes, file));
  return out;
}

}  // namespace rootstock
