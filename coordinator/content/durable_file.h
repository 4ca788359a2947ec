// Files that are whole and on the disk, or absent.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace rootstock {

// RESOURCE_EXHAUSTED/no_space for a full disk or a limit of files, else INTERNAL/io_error.
absl::Status StoreError(const std::filesystem::path& file, int error);

// Whether the file was last written at `time` or before; false when nobody can tell.
bool IsAtLeastAsOld(const std::filesystem::path& file, std::filesystem::file_time_type time);

absl::Status SyncDirectory(const std::filesystem::path& directory);

// A file that appears under its name when it is whole. *One thread at a time.*
class DurableFile {
 public:
  // A file that can't be made is told by Append and Commit.
  explicit DurableFile(std::filesystem::path file);
  ~DurableFile();  // without Commit nothing stays
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  absl::Status Append(std::string_view bytes);
  // Synced with its directory when it returns.
  absl::Status Commit();

 private:
  const std::filesystem::path file_;
  std::string unfinished_;
  int fd_;
  int error_ = 0;
};

absl::Status WriteDurably(const std::filesystem::path& file, std::string_view bytes);

}  // namespace rootstock
