#include "coordinator/content/blob_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace rootstock {
namespace {

absl::Status Unreadable(const std::filesystem::path& file, int error, absl::StatusCode code) {
  return MakeError(code, Reason::kIoError, "file", file.filename().string(), std::strerror(error));
}

}  // namespace

std::optional<FileStamp> StampOf(const std::filesystem::path& file) {
  struct stat info{};
  if (stat(file.c_str(), &info) != 0) return std::nullopt;
  return FileStamp{info.st_ino, static_cast<uint64_t>(info.st_size),
                   info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec};
}

absl::StatusOr<Digest> DigestOfFile(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    // Too many open files, say: that says nothing of the content.
    return Unreadable(
        file, errno,
        errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable);
  }
  Sha256 hash;
  std::vector<uint8_t> buffer(1 << 20);
  ssize_t n = 0;
  do {
    n = read(fd, buffer.data(), buffer.size());
    if (n > 0) hash.Update(std::span(buffer.data(), static_cast<size_t>(n)));
  } while (n > 0 || (n < 0 && errno == EINTR));
  const int failed = n < 0 ? errno : 0;
  close(fd);
  if (failed != 0) return Unreadable(file, failed, absl::StatusCode::kDataLoss);
  return hash.Finish();
}

}  // namespace rootstock
