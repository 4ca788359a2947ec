// Content that goes from one to another in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"

namespace rootstock {

// Takes content as it comes. An error ends the transfer with it.
struct BlobSink {
  // Once, before all bytes: how many there will be.
  std::function<absl::Status(uint64_t total_bytes)> begin;
  std::function<absl::Status(std::string_view bytes)> write;
};

// All of `content` at once.
inline absl::Status GiveAll(std::string_view content, const BlobSink& sink) {
  const absl::Status begun = sink.begin(content.size());
  return begun.ok() ? sink.write(content) : begun;
}

}  // namespace rootstock
