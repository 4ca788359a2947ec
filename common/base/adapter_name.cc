#include "common/base/adapter_name.h"

#include <algorithm>

namespace rootstock {

bool IsPlainName(std::string_view name) {
  constexpr size_t kMaxBytes = 63;
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= kMaxBytes && plain(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

}  // namespace rootstock
