// Bytes that somebody keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace rootstock {

// Valid while it, or a copy of it, lives. Immutable, thread-safe.
struct HeldBytes {
  std::span<const uint8_t> bytes;
  std::shared_ptr<const void> owner;
};

inline HeldBytes Hold(std::string bytes) {
  const auto owner = std::make_shared<const std::string>(std::move(bytes));
  return {{reinterpret_cast<const uint8_t*>(owner->data()), owner->size()}, owner};
}

}  // namespace rootstock
