// A file of the cache that this process holds open, with a lock that others respect.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/digest.h"

namespace rootstock {

// Owns the descriptor; the lock goes with it, or with the process. *Thread-safe: but for Write.*
class BlobFile {
 public:
  // With a shared lock; null when there is no such file, or it was removed meanwhile. Waits for a
  // process that is about to remove it. Marks it as used now.
  static absl::StatusOr<std::unique_ptr<BlobFile>> Open(const std::filesystem::path& path);
  // Of `bytes`, which the file system has set aside where it can: RESOURCE_EXHAUSTED when the disk
  // is full. Replaces what is there.
  static absl::StatusOr<std::unique_ptr<BlobFile>> Create(const std::filesystem::path& path,
                                                          uint64_t bytes);
  // Removes the file unless some process holds it: whether it did.
  static bool RemoveIfFree(const std::filesystem::path& path);

  ~BlobFile();
  BlobFile(const BlobFile&) = delete;
  BlobFile& operator=(const BlobFile&) = delete;

  uint64_t bytes() const { return bytes_; }
  // At the end of what was written.
  absl::Status Write(std::string_view bytes);
  // Reads all of it once, in pieces that go to `take`: the digest of just those bytes, whoever
  // writes or cuts the file meanwhile.
  absl::StatusOr<Digest> Read(const std::function<void(std::string_view)>& take) const;
  absl::StatusOr<Digest> Hash() const {
    return Read([](std::string_view) {});
  }
  // Unless something else is there by now: whether it did.
  bool Remove() const;

 private:
  BlobFile(int fd, std::filesystem::path path, uint64_t bytes)
      : fd_(fd), path_(std::move(path)), bytes_(bytes) {}

  const int fd_;
  const std::filesystem::path path_;
  const uint64_t bytes_;
  uint64_t written_ = 0;
};

// Held by one process at a time while it makes room in the directory. RAII.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& dir);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

// io_error, or RESOURCE_EXHAUSTED/no_space for a full disk, of `error` (errno). The path is logged:
// clients hear the error, and where a node keeps its files is not theirs.
absl::Status DiskError(const std::filesystem::path& path, int error);
// Whether the directory, which is made where it is not there, takes files: FAILED_PRECONDITION
// with its path when it doesn't.
absl::Status CheckTakesFiles(const std::filesystem::path& dir);
// Of errors that tell of a budget without room.
constexpr char kDiskBudgetField[] = "disk-cache-bytes";
// Whether this node's disk was it, which fails or has no room, and not a source of content (the
// coordinator's disk has other fields).
bool IsDiskError(const absl::Status& status);

}  // namespace rootstock
