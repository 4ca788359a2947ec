#include "worker/link/blobs/object_blobs.h"

#include <cstdint>
#include <utility>

#include "common/base/status.h"
#include "common/objects/blob_key.h"

namespace rootstock {
namespace {

constexpr int kRetries = 1;  // then the coordinator is asked

}  // namespace

ObjectBlobs::ObjectBlobs(std::unique_ptr<ObjectStore> store, std::function<absl::Time()> clock)
    : store_(std::move(store)), clock_(std::move(clock)) {}

absl::StatusOr<std::unique_ptr<ObjectBlobs>> ObjectBlobs::Open(const std::string& uri) {
  ASSIGN_OR_RETURN(const StoreUri parsed, ParseStoreUri(uri));
  ObjectStoreOptions options = ObjectStoreOptions::FromEnvironment();
  options.max_retries = kRetries;
  ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, OpenObjectStore(parsed, options));
  return std::make_unique<ObjectBlobs>(std::move(store));
}

absl::Status ObjectBlobs::Fetch(const Digest& digest, const BlobSink& sink) {
  {
    std::lock_guard lock(mutex_);
    if (clock_() < paused_until_) {
      return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "digest", digest.Short(),
                       "the object store failed a moment ago");
    }
  }
  const std::string key = BlobKey(digest);
  const absl::StatusOr<uint64_t> bytes = store_->Size(key);
  if (!bytes.ok()) return Failed(bytes.status());
  RETURN_IF_ERROR(sink.begin(*bytes));
  absl::Status written;
  const absl::Status got = store_->Get(key, UINT64_MAX, [&](std::string_view more) {
    written = sink.write(more);
    return written;
  });
  return written.ok() ? Failed(got) : written;
}

absl::Status ObjectBlobs::Failed(absl::Status status) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
      absl::IsPermissionDenied(status)) {
    std::lock_guard lock(mutex_);
    paused_until_ = clock_() + kPause;
  }
  return status;
}

}  // namespace rootstock
