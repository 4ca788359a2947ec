// Where a node gets adapter content from.
#pragma once

#include "absl/status/status.h"
#include "common/base/blob_sink.h"
#include "common/base/digest.h"
#include "common/plan/plan.h"

namespace rootstock {

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
