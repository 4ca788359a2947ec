// Character classes of Oniguruma patterns as ICU sets, with the members of Unicode 16.0.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace rootstock {

// \p{name} (or, negated, \P{name}) as an ICU set: general categories, scripts but Common,
// White_Space. UNIMPLEMENTED for any other.
absl::StatusOr<std::string> PropertySet(std::string_view name, bool negated);

// \w and, negated, \W.
std::string WordSet(bool negated);

}  // namespace rootstock
