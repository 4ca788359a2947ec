#include "coordinator/adapters/adapter_path.h"

#include <algorithm>
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

}  // namespace

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

absl::StatusOr<fs::path> ResolveAdapterPath(const fs::path& root, const std::string& path) {
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
  int files = 0;
  for (fs::directory_iterator it(real, error), end; !error && it != end; it.increment(error)) {
    if (++files > kMaxFiles) return BadPath(path, "holds more than 1000 files");
    std::error_code broken;
    const fs::path target = fs::canonical(it->path(), broken);
    if (broken || !IsInside(real_root, target)) {
      return BadPath(
          path, "its file '" + it->path().filename().string() + "' leads out of --adapter-root");
    }
  }
  if (error) return BadPath(path, error.message());
  return real;
}

}  // namespace rootstock
