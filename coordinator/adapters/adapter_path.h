// Names and paths that come from clients.
#pragma once

#include <filesystem>
#include <string>

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

// The directory under `root` that `path` names, relative to it or absolute. path_invalid for
// "..", what lies elsewhere or does not exist, and what leads out of the root through a symlink,
// the directory's files included.
absl::StatusOr<std::filesystem::path> ResolveAdapterPath(const std::filesystem::path& root,
                                                         const std::string& path);

}  // namespace rootstock
