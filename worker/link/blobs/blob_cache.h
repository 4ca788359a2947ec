// The disk tier of a node: adapter content by digest, shared by its ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/plan/plan.h"
#include "worker/link/blobs/blob_file.h"
#include "worker/link/blobs/blob_source.h"

namespace rootstock {

// Content that is there. While the lease lives no process of the node evicts the file.
struct CachedBlob {
  FetchSource source = FetchSource::kNone;
  uint64_t bytes = 0;
  std::shared_ptr<const BlobFile> lease;
};

// Files DIR/<digest>, complete or absent, within a byte budget of the directory, whichever process
// wrote them. The one whose last use is longest ago goes first (a file's time of modification is
// that of its last use), never one that some process reads, leases or has pinned: those hold a lock
// of the file. *Thread-safe, between processes too.*
class BlobCache {
 public:
  // budget_bytes 0: half of what is free where DIR is, what lies in it included; looked at again
  // when that is too little for one file.
  BlobCache(std::filesystem::path dir, uint64_t budget_bytes);
  std::filesystem::path PathOf(const Digest& digest) const;

  // Returns when the content is there. A file of other bytes is replaced. `bytes`: of the content;
  // 0: not known. Errors: of the source; digest_mismatch or truncated when it gave other bytes, or
  // names another size (nothing leaves for it); RESOURCE_EXHAUSTED/no_space with the numbers when
  // there is no room, FAILED_PRECONDITION/too_large when there never is; io_error for the disk.
  absl::StatusOr<CachedBlob> Ensure(const Digest& digest, BlobSource& source, uint64_t bytes = 0);
  // As Ensure, but waits for no source: nothing when the content is not there, spoilt, or on its
  // way, or the disk fails.
  std::optional<CachedBlob> FindNow(const Digest& digest);
  // Reads the content once, in pieces that go to `sink`; what came counts when this is OK, not
  // before: then just those bytes are the digest's. NOT_FOUND/io_error when absent;
  // digest_mismatch, or io_error, when it is spoilt, and then it is gone, for Ensure to bring anew;
  // else the sink's error, which gets no more.
  absl::Status Read(const Digest& digest, const BlobSink& sink);
  // The bytes that were freed; absent is fine. Pins go too.
  absl::StatusOr<uint64_t> Remove(const Digest& digest);
  // Looks at its name only.
  bool IsThere(const Digest& digest) const;
  // A use that reads no file. Absent is fine.
  void Touch(const Digest& digest) const;
  // Absent is fine: what comes later is pinned then.
  void Pin(const Digest& digest, bool pinned);
  void UnpinAll();
  // Removes what processes that are gone left half written.
  void SweepTemporaries() const;

  // All that is there, and what came and went by this process since the last call.
  std::vector<TierChange> List() const;
  std::vector<TierChange> TakeChanges();

 private:
  // Null when it is not there, or spoilt.
  absl::StatusOr<std::shared_ptr<const BlobFile>> Find(const Digest& digest);
  absl::StatusOr<CachedBlob> Download(const Digest& digest, BlobSource& source, uint64_t bytes);
  // Makes the file of `bytes`, which then count for the budget.
  absl::StatusOr<std::unique_ptr<BlobFile>> Reserve(const std::filesystem::path& temporary,
                                                    uint64_t bytes);
  // Its pin stays, for what comes in its place.
  void Discard(const Digest& digest, const BlobFile& spoilt);
  // Of what nobody holds; with the directory's lock.
  bool EvictOldest();
  void Note(const Digest& digest, uint64_t bytes, bool present);

  const std::filesystem::path dir_;
  const bool given_;  // the budget
  std::atomic<uint64_t> budget_bytes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Digest> fetching_;
  std::map<Digest, uint64_t> verified_;                       // by this process, with its bytes
  std::map<Digest, std::shared_ptr<const BlobFile>> pinned_;  // null while absent
  std::vector<TierChange> changes_;
};

}  // namespace rootstock
