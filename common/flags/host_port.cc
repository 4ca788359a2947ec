#include "common/flags/host_port.h"

#include "absl/strings/numbers.h"

namespace rootstock {

bool IsHostPort(const std::string& text, uint32_t lowest_port) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  return colon != std::string::npos && colon > 0 && text.find("//") == std::string::npos &&
         absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= lowest_port && port <= 65535;
}

}  // namespace rootstock
