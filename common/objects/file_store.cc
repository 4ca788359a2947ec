#include "common/objects/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = 1 << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

bool IsInside(const fs::path& root, const fs::path& path) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

// errno of a failed copy, 0 when all is there and synced.
int CopyTo(int from, int to) {
  std::vector<char> buffer(kChunkBytes);
  for (;;) {
    const ssize_t n = read(from, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) break;
    for (ssize_t done = 0; done < n;) {
      const ssize_t w = write(to, buffer.data() + done, static_cast<size_t>(n - done));
      if (w < 0 && errno == EINTR) continue;
      if (w < 0) return errno;
      done += w;
    }
  }
  return fchmod(to, 0644) == 0 && fsync(to) == 0 ? 0 : errno;
}

// errno; 0 when every directory from `folder` up to `top` is on the disk.
int SyncFolders(fs::path folder, const fs::path& top) {
  for (;; folder = folder.parent_path()) {
    const Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.get() < 0 || fsync(directory.get()) != 0) return errno;
    if (folder == top) return 0;
  }
}

}  // namespace

std::string FileStore::UriOf(const std::string& key) const {
  return absl::StrCat(uri_.ToString(), "/", key);
}

absl::Status FileStore::Failed(const std::string& key, int error) const {
  const absl::StatusCode code = CodeOfErrno(error);
  const bool full = code == absl::StatusCode::kResourceExhausted;
  return MakeError(code, full ? Reason::kNoSpace : Reason::kIoError, "uri", UriOf(key),
                   std::strerror(error));
}

absl::StatusOr<fs::path> FileStore::Root() const {
  std::error_code error;
  fs::path root = fs::canonical(root_, error);
  if (!error && fs::is_directory(root, error)) return root;
  const int why = error ? error.value() : ENOTDIR;
  const absl::StatusCode code = CodeOfErrno(why);
  return MakeError(code == absl::StatusCode::kNotFound ? absl::StatusCode::kUnavailable : code,
                   Reason::kIoError, "uri", uri_.ToString(),
                   absl::StrCat("the store's directory: ", std::strerror(why)));
}

absl::Status FileStore::Create() {
  std::error_code error;
  fs::create_directories(root_, error);
  return Root().status();
}

absl::StatusOr<fs::path> FileStore::Find(const std::string& key) const {
  RETURN_IF_ERROR(CheckObjectKey(key));
  ASSIGN_OR_RETURN(const fs::path root, Root());
  std::error_code error;
  const fs::path real = fs::canonical(root / key, error);
  if (error) return Failed(key, error.value());
  if (!IsInside(root, real)) {
    return InvalidField(Reason::kPathInvalid, "uri", UriOf(key), "leads out of the store");
  }
  if (!fs::is_regular_file(real, error)) return Failed(key, ENOENT);
  return real;
}

absl::StatusOr<uint64_t> FileStore::Size(const std::string& key) {
  ASSIGN_OR_RETURN(const fs::path path, Find(key));
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return Failed(key, error.value());
  return bytes;
}

absl::Status FileStore::Get(const std::string& key, uint64_t max_bytes, const Sink& sink) {
  ASSIGN_OR_RETURN(const fs::path path, Find(key));
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return Failed(key, errno);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > max_bytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kSizeLimit, "uri", UriOf(key),
                     absl::StrCat(bytes, " bytes, more than the ", max_bytes, " allowed"));
  }
  return Stream(key, file.get(), bytes, sink);
}

absl::Status FileStore::Stream(const std::string& key, int fd, uint64_t bytes,
                               const Sink& sink) const {
  std::vector<char> buffer(kChunkBytes);
  for (uint64_t done = 0; done < bytes;) {
    if (cancelled_) return absl::CancelledError(absl::StrCat(UriOf(key), ": cancelled"));
    const size_t want = std::min<uint64_t>(buffer.size(), bytes - done);
    const ssize_t n = read(fd, buffer.data(), want);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(key, errno);
    if (n == 0) {
      return MakeError(absl::StatusCode::kDataLoss, Reason::kTruncated, "uri", UriOf(key),
                       absl::StrCat("was cut to ", done, " of ", bytes, " bytes while read"));
    }
    RETURN_IF_ERROR(sink({buffer.data(), static_cast<size_t>(n)}));
    done += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<fs::path> FileStore::MakeFolder(const std::string& key) const {
  ASSIGN_OR_RETURN(const fs::path root, Root());
  const fs::path folder = (root_ / key).parent_path();
  std::error_code error;
  fs::path known = folder;
  while (!fs::exists(known, error)) known = known.parent_path();
  if (!IsInside(root, fs::canonical(known, error)) || error) {
    return InvalidField(Reason::kPathInvalid, "uri", UriOf(key), "leads out of the store");
  }
  fs::create_directories(folder, error);
  if (error) return Failed(key, error.value());
  return known;
}

absl::Status FileStore::Put(const std::string& key, const fs::path& file) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  const fs::path target = root_ / key;
  ASSIGN_OR_RETURN(const fs::path known, MakeFolder(key));
  const Descriptor from(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (from.get() < 0) return Failed(key, errno);
  std::string name = (target.parent_path() / ".new-XXXXXX").string();
  const Descriptor to(mkostemp(name.data(), O_CLOEXEC));
  if (to.get() < 0) return Failed(key, errno);
  int failed = CopyTo(from.get(), to.get());
  if (failed == 0 && rename(name.c_str(), target.c_str()) != 0) failed = errno;
  if (failed == 0) {
    failed = SyncFolders(target.parent_path(), known);
  } else {
    unlink(name.c_str());
  }
  return failed == 0 ? absl::OkStatus() : Failed(key, failed);
}

absl::Status FileStore::Remove(const std::string& key) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  const absl::StatusOr<fs::path> path = Find(key);
  if (absl::IsNotFound(path.status())) return absl::OkStatus();
  RETURN_IF_ERROR(path.status());
  std::error_code error;
  const fs::path target = root_ / key;
  fs::remove(target, error);
  if (error) return Failed(key, error.value());
  const int failed = SyncFolders(target.parent_path(), target.parent_path());
  return failed == 0 ? absl::OkStatus() : Failed(key, failed);
}

}  // namespace rootstock
