// Where a node gets adapter content from.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/digest.h"
#include "common/plan/plan.h"

namespace rootstock {

// Takes content as it comes. An error ends the fetch with it.
struct BlobSink {
  // Once, before all bytes: how many there will be.
  std::function<absl::Status(uint64_t total_bytes)> begin;
  std::function<absl::Status(std::string_view bytes)> write;
};

// *Thread-safe.*
class BlobSource {
 public:
  virtual ~BlobSource() = default;
  virtual FetchSource kind() const = 0;
  virtual absl::Status Fetch(const Digest& digest, const BlobSink& sink) = 0;
  // Fetches that run and those to come end soon, with an error.
  virtual void Cancel() = 0;
};

}  // namespace rootstock
