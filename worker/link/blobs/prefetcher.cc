#include "worker/link/blobs/prefetcher.h"

#include <utility>

#include "common/base/log.h"

namespace rootstock {
namespace {

// Has nothing: what is asked of it is on the disk, or fails at once.
class NoSource : public BlobSource {
 public:
  FetchSource kind() const override { return FetchSource::kNone; }
  absl::Status Fetch(const Digest&, const BlobSink&) override {
    return absl::NotFoundError("not on the disk");
  }
  void Cancel() override {}
};

}  // namespace

Prefetcher::Prefetcher(BlobCache& cache, std::vector<BlobSource*> sources,
                       std::function<void()> on_done)
    : cache_(cache), sources_(std::move(sources)), on_done_(std::move(on_done)) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (BlobSource* source : sources_) source->Cancel();
  for (Lane* lane : {&disk_, &fetches_}) {
    lane->changed.notify_all();
    for (std::thread& thread : lane->threads) thread.join();
  }
}

void Prefetcher::Start(CommandId id, const Digest& digest, uint64_t bytes) {
  const bool there = cache_.IsThere(digest);
  std::lock_guard lock(mutex_);
  const uint64_t number = ++next_number_;
  outcomes_[id] = {number, std::nullopt};
  Queue(there ? disk_ : fetches_, {id, digest, bytes, number});
}

bool Prefetcher::IsWanted(const Job& job) const {
  const auto it = outcomes_.find(job.id);
  return it != outcomes_.end() && it->second.number == job.number;
}

void Prefetcher::Queue(Lane& lane, Job job) {
  lane.jobs.push_back(job);
  if (stopping_) return;
  if (lane.idle < lane.jobs.size() && lane.threads.size() < lane.most_threads) {
    lane.threads.emplace_back([this, &lane] { Work(lane); });
  }
  lane.changed.notify_one();
}

std::optional<absl::StatusOr<CachedBlob>> Prefetcher::OutcomeOf(CommandId id) const {
  std::lock_guard lock(mutex_);
  const auto it = outcomes_.find(id);
  return it == outcomes_.end() ? std::nullopt : it->second.result;
}

void Prefetcher::Forget(CommandId id) {
  std::lock_guard lock(mutex_);
  outcomes_.erase(id);
}

void Prefetcher::ForgetAll() {
  std::lock_guard lock(mutex_);
  outcomes_.clear();
  disk_.jobs.clear();
  fetches_.jobs.clear();
}

absl::StatusOr<CachedBlob> Prefetcher::Fetch(const Digest& digest, uint64_t bytes) {
  absl::StatusOr<CachedBlob> out;
  for (BlobSource* source : sources_) {
    out = cache_.Ensure(digest, *source, bytes);
    // A source that says too large a size is none that has the content; where the size is known,
    // it is the disk that lacks the room, whoever is asked.
    const bool doubtful = bytes == 0 && (absl::IsResourceExhausted(out.status()) ||
                                         absl::IsFailedPrecondition(out.status()));
    if (out.ok() || (IsDiskError(out.status()) && !doubtful)) return out;
    if (source == sources_.back() || absl::IsNotFound(out.status())) continue;
    LogWarning(digest.Short(), " comes from elsewhere: ", std::string(out.status().message()));
  }
  // What the coordinator's disk has spoilt it takes anew from the object store, once it knows.
  if (absl::IsDataLoss(out.status())) out = cache_.Ensure(digest, *sources_.back(), bytes);
  return out;
}

std::optional<CachedBlob> Prefetcher::FromDisk(const Job& job) {
  NoSource none;
  absl::StatusOr<CachedBlob> found = cache_.Ensure(job.digest, none, job.bytes);
  return found.ok() ? std::optional(*std::move(found)) : std::nullopt;
}

void Prefetcher::Work(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++lane.idle;
    lane.changed.wait(lock, [&] { return stopping_ || !lane.jobs.empty(); });
    --lane.idle;
    if (stopping_) return;
    const Job job = lane.jobs.front();
    lane.jobs.pop_front();
    lock.unlock();
    absl::StatusOr<CachedBlob> outcome;
    if (&lane == &disk_) {
      std::optional<CachedBlob> found = FromDisk(job);
      if (!found) {  // evicted meanwhile, or spoilt
        lock.lock();
        if (IsWanted(job)) Queue(fetches_, job);
        continue;
      }
      outcome = *std::move(found);
    } else {
      outcome = Fetch(job.digest, job.bytes);
    }
    lock.lock();
    if (IsWanted(job)) outcomes_.at(job.id).result = std::move(outcome);
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace rootstock
