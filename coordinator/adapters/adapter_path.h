// Names and paths that come from clients.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace rootstock {

// [a-z0-9][a-z0-9._-]{0,62}
absl::Status CheckAdapterName(const std::string& name);
// As names are: it stands in paths and logs.
absl::Status CheckTenant(const std::string& tenant);

// A name that something new may have: well formed, of a tenant, not the base's. INVALID_ARGUMENT,
// ALREADY_EXISTS/name_taken.
absl::Status CheckNewName(const std::string& name, const std::string& tenant,
                          const std::string& base_name);

// A directory that is held open. Closes itself.
class AdapterDirectory {
 public:
  explicit AdapterDirectory(int fd) : fd_(fd) {}
  AdapterDirectory(AdapterDirectory&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  AdapterDirectory& operator=(AdapterDirectory&&) = delete;
  ~AdapterDirectory();

  // Means this directory as long as it is held, whatever is moved or linked meanwhile.
  std::filesystem::path path() const;

 private:
  int fd_;
};

// The directory under `root` that `path` names, relative to it or absolute, opened without leaving
// the root. path_invalid for "..", what lies elsewhere or does not exist, and what leads out of the
// root through a symlink, the directory's files included.
absl::StatusOr<AdapterDirectory> OpenAdapterPath(const std::filesystem::path& root,
                                                 const std::string& path);

}  // namespace rootstock
