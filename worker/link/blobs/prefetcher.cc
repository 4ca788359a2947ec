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
  changed_.notify_all();
  for (BlobSource* source : sources_) source->Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::Start(CommandId id, const Digest& digest, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t number = ++next_number_;
  outcomes_[id] = {number, std::nullopt};
  jobs_.push_back({id, digest, bytes, number});
  if (idle_ < jobs_.size() && threads_.size() < kMostThreads) {
    threads_.emplace_back([this] { Work(); });
  }
  changed_.notify_one();
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
  jobs_.clear();
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

void Prefetcher::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (stopping_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    absl::StatusOr<CachedBlob> outcome = Fetch(job.digest, job.bytes);
    lock.lock();
    const auto it = outcomes_.find(job.id);
    if (it != outcomes_.end() && it->second.number == job.number) {
      it->second.result = std::move(outcome);
    }
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace rootstock
