#include "worker/device/architectures.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

// Of one entry: "90a-real" is 9.0 with its own features, "86" is 8.6.
bool Fits(const std::string& entry, int major, int minor) {
  const size_t digits = std::min(entry.find_first_not_of("0123456789"), entry.size());
  int number = 0;
  if (!absl::SimpleAtoi(entry.substr(0, digits), &number)) return false;
  const bool own_features = digits < entry.size() && entry[digits] == 'a';
  if (major == 9) return number == 90 && own_features && minor == 0;
  return number / 10 == major && (own_features ? number % 10 == minor : number % 10 <= minor);
}

}  // namespace

absl::Status CheckArchitectures(std::string_view built, int major, int minor) {
  const std::vector<std::string> entries = absl::StrSplit(std::string(built), ',');
  const auto fits = [&](const std::string& entry) { return Fits(entry, major, minor); };
  if (std::any_of(entries.begin(), entries.end(), fits)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kConfigInvalid,
                   "CMAKE_CUDA_ARCHITECTURES", std::string(built),
                   absl::StrCat("the GPU is of compute capability ", major, ".", minor,
                                ": build with ", major, minor, major == 9 ? "a" : "", "-real"));
}

}  // namespace rootstock
