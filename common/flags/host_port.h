// What --listen, --address and --coordinator have in common.
#pragma once

#include <cstdint>
#include <string>

namespace rootstock {

// HOST:PORT without a scheme, the port from `lowest_port` to 65535.
bool IsHostPort(const std::string& text, uint32_t lowest_port);

}  // namespace rootstock
