#include "coordinator/adapters/blob_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

absl::Status IoError(const fs::path& file, int error) {
  const auto code = error == ENOSPC || error == EDQUOT ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInternal;
  return MakeError(code, Reason::kIoError, "blob", file.filename().string(),
                   std::string("cannot be stored: ") + std::strerror(error));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool WriteAll(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool SyncDirectory(const fs::path& directory) {
  const File dir(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return dir.fd() >= 0 && fsync(dir.fd()) == 0;
}

}  // namespace

absl::Status BlobStore::Open(const std::set<Digest>& keep) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return IoError(directory_, error.value());
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    std::error_code ignored;
    if (!digest || !keep.contains(*digest)) fs::remove(it->path(), ignored);
  }
  return error ? IoError(directory_, error.value()) : absl::OkStatus();
}

absl::Status BlobStore::Put(const Digest& digest, const std::string& bytes) const {
  const fs::path target = PathOf(digest);
  std::string name = (directory_ / ".new-XXXXXX").string();
  const File file(mkostemp(name.data(), O_CLOEXEC));
  if (file.fd() < 0) return IoError(target, errno);
  if (!WriteAll(file.fd(), bytes) || fchmod(file.fd(), 0644) != 0 || fsync(file.fd()) != 0 ||
      rename(name.c_str(), target.c_str()) != 0) {
    const int error = errno;
    unlink(name.c_str());
    return IoError(target, error);
  }
  if (!SyncDirectory(directory_)) return IoError(target, errno);
  return absl::OkStatus();
}

void BlobStore::Remove(const Digest& digest) const {
  std::error_code ignored;
  fs::remove(PathOf(digest), ignored);
}

fs::path BlobStore::PathOf(const Digest& digest) const { return directory_ / digest.Hex(); }

bool BlobStore::Holds(const Digest& digest, uint64_t bytes) const {
  std::error_code error;
  return fs::file_size(PathOf(digest), error) == bytes && !error;
}

}  // namespace rootstock
