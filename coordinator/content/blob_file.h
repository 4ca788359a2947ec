// A blob's file, looked at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/digest.h"

namespace rootstock {

// Changes with every write to a file that goes through the system.
struct FileStamp {
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
// Nothing when there is no such file.
std::optional<FileStamp> StampOf(const std::filesystem::path& file);

// Reads all of it. NOT_FOUND; UNAVAILABLE / io_error for what can't be opened now; DATA_LOSS /
// io_error for what the disk does not give back.
absl::StatusOr<Digest> DigestOfFile(const std::filesystem::path& file);

}  // namespace rootstock
