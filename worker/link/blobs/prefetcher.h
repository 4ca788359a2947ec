// Fetches adapter content beside the steps.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "worker/link/blobs/blob_cache.h"

namespace rootstock {

// Each fetch on a thread of its own, up to kMostFetches, so that slow ones do not hold up others;
// what is on the disk waits for none of them. The disk is looked at by these threads alone, never
// by a caller's. *Thread-safe.*
class Prefetcher {
 public:
  static constexpr size_t kMostFetches = 64;
  static constexpr size_t kMostDiskReads = 4;

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
  // A use that reads no file, told to the disk by and by. Absent is fine.
  void Touch(const Digest& digest);
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
    bool touch_only = false;
  };
  struct Outcome {
    uint64_t number;
    std::optional<absl::StatusOr<CachedBlob>> result;
  };
  // Jobs in order, on threads of their own.
  struct Lane {
    const size_t most_threads;
    std::deque<Job> jobs;
    std::condition_variable changed;
    size_t idle = 0;
    std::vector<std::thread> threads;
  };
  // These two under the mutex.
  bool IsWanted(const Job& job) const;
  void Queue(Lane& lane, Job job);
  void Work(Lane& lane);
  // The outcome, or the lane where it goes on; without the mutex.
  std::variant<absl::StatusOr<CachedBlob>, Lane*> Do(const Lane& lane, const Job& job);
  absl::StatusOr<CachedBlob> Fetch(const Digest& digest, uint64_t bytes);

  BlobCache& cache_;
  const std::vector<BlobSource*> sources_;
  const std::function<void()> on_done_;
  mutable std::mutex mutex_;
  std::map<CommandId, Outcome> outcomes_;
  uint64_t next_number_ = 0;
  bool stopping_ = false;
  // A job goes from the first, which looks for its file's name, to one of the others.
  Lane names_{1}, disk_{kMostDiskReads}, fetches_{kMostFetches};
};

}  // namespace rootstock
