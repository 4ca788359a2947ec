// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace rootstock {

struct SafetensorsLimits {
  uint64_t max_header_bytes = 4 << 20;
  uint64_t max_file_bytes = uint64_t{1} << 50;
  size_t max_tensors = 1 << 16;
};
// Base models come from the operator: their headers may be longer.
constexpr SafetensorsLimits kModelFileLimits = {.max_header_bytes = 100 << 20,
                                                .max_tensors = 1 << 20};

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // within the data that follows the header
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by name
  std::map<std::string, std::string> metadata;
  const TensorInfo* Find(const std::string& name) const;
};

constexpr uint64_t kSafetensorsPrefixBytes = 8;

// Header length from the first 8 bytes of a file of `file_bytes`, checked before anything is
// allocated: header_too_large, truncated or size_limit. `file` is the name that errors call.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::span<const uint8_t> prefix,
                                                uint64_t file_bytes, const std::string& file,
                                                const SafetensorsLimits& limits);

// Checks everything that the header says about `data_bytes` of data. kInvalidArgument with
// header_invalid, duplicate, dtype, overlap_or_hole or truncated. Dtypes other than F32, F16, BF16
// are refused naming the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const uint8_t> json,
                                                         uint64_t data_bytes,
                                                         const std::string& file,
                                                         const SafetensorsLimits& limits);

}  // namespace rootstock
