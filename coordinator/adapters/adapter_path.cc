#include "coordinator/adapters/adapter_path.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/adapter_name.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFiles = 1000;

bool IsInside(const fs::path& root, const fs::path& path) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

absl::Status BadPath(const std::string& path, const std::string& why) {
  return InvalidField(Reason::kPathInvalid, "path", path, why);
}

// `real` under `root`, both without links: one that has come into it since is not followed. -1 with
// errno.
int OpenWithoutLinks(const fs::path& root, const fs::path& real) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  int fd = open(root.c_str(), kFlags);
  for (const fs::path& part : real.lexically_relative(root)) {
    if (fd < 0) break;
    const int next = openat(fd, part.c_str(), kFlags | O_NOFOLLOW);
    const int error = errno;
    close(fd);
    errno = error;
    fd = next;
  }
  return fd;
}

}  // namespace

AdapterDirectory::~AdapterDirectory() {
  if (fd_ >= 0) close(fd_);
}

fs::path AdapterDirectory::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

absl::Status CheckAdapterName(const std::string& name) {
  if (IsPlainName(name)) return absl::OkStatus();
  return InvalidField(Reason::kInvalidArgument, "name", name,
                      absl::StrCat("must match ", kNamePattern, " (adapter names)"));
}

absl::Status CheckTenant(const std::string& tenant) {
  if (IsPlainName(tenant)) return absl::OkStatus();
  return InvalidField(Reason::kInvalidArgument, "tenant", tenant,
                      absl::StrCat("must match ", kNamePattern));
}

absl::Status CheckNewName(const std::string& name, const std::string& tenant,
                          const std::string& base_name) {
  RETURN_IF_ERROR(CheckAdapterName(name));
  RETURN_IF_ERROR(CheckTenant(tenant));
  if (name != base_name) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", name,
                   "is the served base model's name");
}

absl::StatusOr<AdapterDirectory> OpenAdapterPath(const fs::path& root, const std::string& path) {
  if (root.empty()) return BadPath(path, "the coordinator was started without --adapter-root");
  if (path.empty()) return BadPath(path, "empty; it names a directory under --adapter-root");
  if (path.find('\0') != std::string::npos) return BadPath("", "holds a NUL byte");
  const fs::path given(path);
  if (std::find(given.begin(), given.end(), "..") != given.end()) {
    return BadPath(path, "'..' is not allowed");
  }
  std::error_code error;
  const fs::path real_root = fs::canonical(root, error);
  if (error) return BadPath(root.string(), "--adapter-root cannot be read: " + error.message());
  // Asked of the name alone first: what lies elsewhere is not even looked at.
  if (given.is_absolute() && !IsInside(fs::absolute(root).lexically_normal(), given) &&
      !IsInside(real_root, given)) {
    return BadPath(path, "not under --adapter-root");
  }
  const fs::path real = fs::canonical(real_root / given, error);
  if (error) return BadPath(path, "under --adapter-root: " + error.message());
  if (!IsInside(real_root, real)) return BadPath(path, "leads out of --adapter-root");
  if (!fs::is_directory(real, error)) return BadPath(path, "not a directory");
  const int fd = OpenWithoutLinks(real_root, real);
  if (fd < 0) return BadPath(path, absl::StrCat("changed meanwhile: ", std::strerror(errno)));
  AdapterDirectory directory(fd);
  int files = 0;
  for (fs::directory_iterator it(directory.path(), error), end; !error && it != end;
       it.increment(error)) {
    if (++files > kMaxFiles) return BadPath(path, "holds more than 1000 files");
    std::error_code broken;
    const fs::path target = fs::canonical(it->path(), broken);
    if (broken || !IsInside(real_root, target)) {
      return BadPath(
          path, "its file '" + it->path().filename().string() + "' leads out of --adapter-root");
    }
  }
  if (error) return BadPath(path, error.message());
  return directory;
}

}  // namespace rootstock
