// Adapter content out of the object store that the coordinator keeps it in.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/objects/object_store.h"
#include "worker/link/blobs/blob_source.h"

namespace rootstock {

// A store that cannot be reached, or refuses, is not asked again for kPause: each fetch would wait
// for it before it goes elsewhere. *Thread-safe.*
class ObjectBlobs : public BlobSource {
 public:
  static constexpr absl::Duration kPause = absl::Seconds(30);

  explicit ObjectBlobs(std::unique_ptr<ObjectStore> store,
                       std::function<absl::Time()> clock = &absl::Now);
  // `uri` as --object-store has it, keys and endpoint from the environment. INVALID_ARGUMENT /
  // path_invalid.
  static absl::StatusOr<std::unique_ptr<ObjectBlobs>> Open(const std::string& uri);

  FetchSource kind() const override { return FetchSource::kObject; }
  absl::Status Fetch(const Digest& digest, const BlobSink& sink) override;
  void Cancel() override { store_->Cancel(); }

 private:
  // Of the store; starts the pause.
  absl::Status Failed(absl::Status status);

  const std::unique_ptr<ObjectStore> store_;
  const std::function<absl::Time()> clock_;
  std::mutex mutex_;
  absl::Time paused_until_ = absl::InfinitePast();
};

}  // namespace rootstock
