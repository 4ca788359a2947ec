#include "worker/link/blobs/prefetcher.h"

#include <utility>

#include "common/base/log.h"

namespace rootstock {

Prefetcher::Prefetcher(BlobCache& cache, std::vector<BlobSource*> sources,
                       std::function<void()> on_done)
    : cache_(cache), sources_(std::move(sources)), on_done_(std::move(on_done)) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (BlobSource* source : sources_) source->Cancel();
  for (Lane* lane : {&names_, &disk_, &fetches_}) {
    lane->changed.notify_all();
    for (std::thread& thread : lane->threads) thread.join();
  }
}

void Prefetcher::Start(CommandId id, const Digest& digest, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t number = ++next_number_;
  outcomes_[id] = {number, std::nullopt};
  Queue(names_, {id, digest, bytes, number});
}

void Prefetcher::Touch(const Digest& digest) {
  std::lock_guard lock(mutex_);
  Queue(names_, {CommandId(), digest, 0, 0, /*touch_only=*/true});
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
  for (Lane* lane : {&names_, &disk_, &fetches_}) lane->jobs.clear();
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

std::variant<absl::StatusOr<CachedBlob>, Prefetcher::Lane*> Prefetcher::Do(const Lane& lane,
                                                                           const Job& job) {
  if (&lane == &names_) return cache_.IsThere(job.digest) ? &disk_ : &fetches_;
  if (&lane == &fetches_) return Fetch(job.digest, job.bytes);
  std::optional<CachedBlob> found = cache_.FindNow(job.digest);
  if (!found) return &fetches_;  // evicted meanwhile, spoilt, or on its way
  return *std::move(found);
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
    if (job.touch_only) {
      cache_.Touch(job.digest);
      lock.lock();
      continue;
    }
    auto done = Do(lane, job);
    lock.lock();
    if (Lane** next = std::get_if<Lane*>(&done)) {
      if (IsWanted(job)) Queue(**next, job);
      continue;
    }
    if (IsWanted(job)) outcomes_.at(job.id).result = std::get<0>(std::move(done));
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace rootstock
