// Fetches adapter content beside the steps.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/ids.h"
#include "worker/link/blobs/blob_cache.h"

namespace rootstock {

// Each fetch on a thread of its own, up to kMostThreads, so that slow ones do not hold up others.
// *Thread-safe.*
class Prefetcher {
 public:
  static constexpr size_t kMostThreads = 64;

  // A source is asked when those before it fail, unless it is this node's disk that does or has no
  // room for what is known to come, and the last one, the coordinator, once more when what it gave
  // was spoilt. `on_done` is called on a fetching thread after each fetch. Borrowed until
  // destruction, which cancels the sources.
  Prefetcher(BlobCache& cache, std::vector<BlobSource*> sources, std::function<void()> on_done);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // `bytes`: of the content; 0: not known.
  void Start(CommandId id, const Digest& digest, uint64_t bytes = 0);
  // The outcome of a Start, whose lease lives until Forget; nothing while it runs.
  std::optional<absl::StatusOr<CachedBlob>> OutcomeOf(CommandId id) const;
  void Forget(CommandId id);
  // Outcomes of fetches that still run are not kept.
  void ForgetAll();

 private:
  // `number`: command ids begin anew at each attach, while a fetch of before may still run.
  struct Job {
    CommandId id;
    Digest digest;
    uint64_t bytes;
    uint64_t number;
  };
  struct Outcome {
    uint64_t number;
    std::optional<absl::StatusOr<CachedBlob>> result;
  };
  void Work();
  absl::StatusOr<CachedBlob> Fetch(const Digest& digest, uint64_t bytes);

  BlobCache& cache_;
  const std::vector<BlobSource*> sources_;
  const std::function<void()> on_done_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::map<CommandId, Outcome> outcomes_;
  uint64_t next_number_ = 0;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rootstock
