// What adapters, aliases and tenants may be called.
#pragma once

#include <string_view>

namespace rootstock {

inline constexpr char kNamePattern[] = "[a-z0-9][a-z0-9._-]{0,62}";
// Whether `name` matches it.
bool IsPlainName(std::string_view name);

}  // namespace rootstock
