#include "coordinator/content/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::Status StoreError(const fs::path& file, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   full ? Reason::kNoSpace : Reason::kIoError, "file", file.filename().string(),
                   absl::StrCat("cannot be stored: ", std::strerror(error)));
}

bool IsAtLeastAsOld(const fs::path& file, fs::file_time_type time) {
  std::error_code error;
  const fs::file_time_type written = fs::last_write_time(file, error);
  return !error && written <= time;
}

absl::Status SyncDirectory(const fs::path& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
  if (fd >= 0) close(fd);
  return failed == 0 ? absl::OkStatus() : StoreError(directory, failed);
}

DurableFile::DurableFile(fs::path file)
    : file_(std::move(file)), unfinished_((file_.parent_path() / ".new-XXXXXX").string()) {
  fd_ = mkostemp(unfinished_.data(), O_CLOEXEC);
  if (fd_ < 0) error_ = errno;
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(unfinished_.c_str());
}

absl::Status DurableFile::Append(std::string_view bytes) {
  while (error_ == 0 && !bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  return error_ == 0 ? absl::OkStatus() : StoreError(file_, error_);
}

absl::Status DurableFile::Commit() {
  if (error_ == 0 && (fchmod(fd_, 0644) != 0 || fsync(fd_) != 0 ||
                      rename(unfinished_.c_str(), file_.c_str()) != 0)) {
    error_ = errno;
  }
  if (error_ != 0) return StoreError(file_, error_);
  close(fd_);
  fd_ = -1;
  return SyncDirectory(file_.parent_path());
}

absl::Status WriteDurably(const fs::path& file, std::string_view bytes) {
  DurableFile out(file);
  RETURN_IF_ERROR(out.Append(bytes));
  return out.Commit();
}

}  // namespace rootstock
