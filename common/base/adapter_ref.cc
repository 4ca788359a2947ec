#include "common/base/adapter_ref.h"

#include <charconv>
#include <utility>

namespace rootstock {

std::string AdapterRef::Text() const {
  return version == 0 ? name : name + "@" + std::to_string(version);
}

std::optional<AdapterRef> ParseAdapterRef(const std::string& text) {
  const size_t at = text.find('@');
  AdapterRef out{text.substr(0, at), 0};
  if (at == std::string::npos) return out;
  const char* begin = text.data() + at + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, out.version);
  // Each version has one spelling: no leading zero, no sign.
  if (error != std::errc() || stop != end || *begin == '0') return std::nullopt;
  return out;
}

}  // namespace rootstock
