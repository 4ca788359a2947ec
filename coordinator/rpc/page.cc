#include "coordinator/rpc/page.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;

}  // namespace

std::string TenantOf(const std::string& tenant) { return tenant.empty() ? "default" : tenant; }

// Tenant, a NUL, the place.
std::string MakePageToken(const std::string& tenant, const std::string& last) {
  std::string token;
  absl::WebSafeBase64Escape(absl::StrCat(tenant, std::string(1, '\0'), last), &token);
  return token;
}

absl::StatusOr<std::string> ParsePageToken(const std::string& token, const std::string& tenant) {
  if (token.empty()) return std::string();
  std::string place;
  const std::string start = tenant + '\0';
  if (!absl::WebSafeBase64Unescape(token, &place) || place.compare(0, start.size(), start) != 0) {
    return InvalidField(Reason::kInvalidArgument, "page_token", token,
                        "is not what a list of this tenant returned");
  }
  return place.substr(start.size());
}

absl::StatusOr<size_t> PageSize(int32_t asked) {
  if (asked < 0) {
    return InvalidField(Reason::kInvalidArgument, "page_size", absl::StrCat(asked), "is negative");
  }
  return static_cast<size_t>(asked == 0 ? kDefaultPage : std::min(asked, kMaxPage));
}

}  // namespace rootstock
