// What the lists that come in pages share.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

// An absent tenant is "default".
std::string TenantOf(const std::string& tenant);

// Where a page ended, as a token for the next one of the same tenant.
std::string MakePageToken(const std::string& tenant, const std::string& last);
// The place that a page comes after; empty for the first one. INVALID_ARGUMENT for what no list of
// this tenant returned.
absl::StatusOr<std::string> ParsePageToken(const std::string& token, const std::string& tenant);

// 0: 100; at most 1000. INVALID_ARGUMENT for a negative one.
absl::StatusOr<size_t> PageSize(int32_t asked);

}  // namespace rootstock
