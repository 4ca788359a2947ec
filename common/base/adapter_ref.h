// How people write a version of an adapter: "NAME", or "NAME@N".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rootstock {

struct AdapterRef {
  std::string name;
  uint32_t version = 0;  // 0: none was said

  friend bool operator==(const AdapterRef&, const AdapterRef&) = default;
  friend auto operator<=>(const AdapterRef&, const AdapterRef&) = default;
  std::string Text() const;
};

// Nothing for a text whose part behind the first '@' is no number from 1, written plainly. The
// name is not looked at.
std::optional<AdapterRef> ParseAdapterRef(const std::string& text);

}  // namespace rootstock
