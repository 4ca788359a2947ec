#include "worker/link/blob_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr mode_t kMode = 0644;

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
  return MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                   Reason::kIoError, "path", path.string(),
                   full ? "the disk is full" : std::strerror(error));
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

absl::Status BlobFile::Write(const std::string& bytes) {
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

absl::StatusOr<std::string> BlobFile::Read() const {
  std::string out(bytes_, '\0');
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return DiskError(path_, errno);
    if (n == 0) break;  // cut since it was opened
    done += static_cast<size_t>(n);
  }
  out.resize(done);
  return out;
}

DirectoryLock::DirectoryLock(const std::filesystem::path& dir)
    : fd_(open((dir / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode)) {
  if (fd_ >= 0) Lock(fd_, LOCK_EX);
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace rootstock
