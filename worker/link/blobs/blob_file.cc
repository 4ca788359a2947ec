#include "worker/link/blobs/blob_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr mode_t kMode = 0644;
constexpr size_t kPieceBytes = 1 << 20;
constexpr char kDiskField[] = "cache-dir";

// Waits through signals.
bool Lock(int fd, int operation) {
  while (flock(fd, operation) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace

absl::Status DiskError(const std::filesystem::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  const std::string why = full ? "the disk is full" : std::strerror(error);
  LogWarning(path.string(), ": ", why);
  return MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                   full ? Reason::kNoSpace : Reason::kIoError, kDiskField, "", why);
}

absl::Status CheckTakesFiles(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::filesystem::path probe = dir / absl::StrCat(".probe.", getpid());
  if (!error) {
    const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
    if (fd < 0) error.assign(errno, std::generic_category());
    if (fd >= 0) close(fd);
    unlink(probe.c_str());
  }
  if (!error) return absl::OkStatus();
  // A full disk may have room again, and the base needs none.
  if (error.value() == ENOSPC || error.value() == EDQUOT) {
    LogWarning("cache-dir=", dir.string(), ": takes no files now: ", error.message());
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, kDiskField,
                   dir.string(), absl::StrCat("takes no files: ", error.message()));
}

bool IsDiskError(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail && (detail->field == kDiskField || detail->field == kDiskBudgetField);
}

absl::StatusOr<std::unique_ptr<BlobFile>> BlobFile::Open(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return std::unique_ptr<BlobFile>();
    return DiskError(path, errno);
  }
  struct stat facts{};
  const bool held = Lock(fd, LOCK_SH) && fstat(fd, &facts) == 0;
  const int error = errno;
  if (!held || facts.st_nlink == 0) close(fd);
  if (!held) return DiskError(path, error);
  if (facts.st_nlink == 0) return std::unique_ptr<BlobFile>();
  futimens(fd, nullptr);
  return std::unique_ptr<BlobFile>(new BlobFile(fd, path, static_cast<uint64_t>(facts.st_size)));
}

absl::StatusOr<std::unique_ptr<BlobFile>> BlobFile::Create(const std::filesystem::path& path,
                                                           uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (fd < 0) return DiskError(path, errno);
  std::unique_ptr<BlobFile> file(new BlobFile(fd, path, bytes));
  Lock(fd, LOCK_SH);
  int error = bytes == 0 || fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  if (error == 0) return file;
  unlink(path.c_str());
  return DiskError(path, error);
}

bool BlobFile::RemoveIfFree(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool removed = flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path.c_str()) == 0;
  close(fd);
  return removed;
}

BlobFile::~BlobFile() { close(fd_); }

absl::Status BlobFile::Write(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(written_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return DiskError(path_, errno);
    done += static_cast<size_t>(n);
  }
  written_ += done;
  return absl::OkStatus();
}

absl::StatusOr<Digest> BlobFile::Read(const std::function<void(std::string_view)>& take) const {
  std::vector<char> piece(std::min<uint64_t>(kPieceBytes, bytes_));
  Sha256 hash;
  for (uint64_t done = 0; done < bytes_;) {
    const size_t want = std::min<uint64_t>(piece.size(), bytes_ - done);
    const ssize_t n = pread(fd_, piece.data(), want, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return DiskError(path_, errno);
    if (n == 0) break;  // cut since it was opened
    const std::string_view came(piece.data(), static_cast<size_t>(n));
    hash.Update({reinterpret_cast<const uint8_t*>(piece.data()), came.size()});
    take(came);
    done += static_cast<uint64_t>(n);
  }
  return hash.Finish();
}

bool BlobFile::Remove() const {
  struct stat mine{}, there{};
  return fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev && unlink(path_.c_str()) == 0;
}

DirectoryLock::DirectoryLock(const std::filesystem::path& dir)
    : fd_(open((dir / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode)) {
  if (fd_ >= 0) Lock(fd_, LOCK_EX);
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace rootstock
