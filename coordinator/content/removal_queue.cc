#include "coordinator/content/removal_queue.h"

#include <string>
#include <utility>

#include "common/base/log.h"

namespace rootstock {

RemovalQueue::RemovalQueue(Remove remove, std::chrono::milliseconds retry)
    : remove_(std::move(remove)), retry_(retry), thread_([this] { Run(); }) {}

RemovalQueue::~RemovalQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void RemovalQueue::Add(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  failed_.erase(digest);
  waiting_.insert(digest);
  changed_.notify_all();
}

bool RemovalQueue::Forget(const Digest& digest) {
  std::unique_lock lock(mutex_);
  const size_t waited = waiting_.erase(digest) + failed_.erase(digest);
  const bool ran = running_ == digest;
  if (ran) forgotten_ = true;
  if (waited > 0) changed_.notify_all();  // whoever drains may have waited for it alone
  changed_.wait(lock, [&] { return running_ != digest; });
  return waited > 0 || ran;
}

void RemovalQueue::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !running_; });
}

void RemovalQueue::Run() {
  std::unique_lock lock(mutex_);
  const auto has_work = [this] { return stopping_ || !waiting_.empty(); };
  for (;;) {
    if (failed_.empty()) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_until(lock, retry_at_, has_work)) {
      waiting_.swap(failed_);
    }
    if (stopping_) return;
    if (waiting_.empty()) continue;
    running_ = waiting_.extract(waiting_.begin()).value();
    forgotten_ = false;
    lock.unlock();
    const absl::Status removed = remove_(*running_);
    lock.lock();
    const Digest digest = *running_;
    bool first = false;  // of those that fail together: it stands for all
    if (!removed.ok() && !forgotten_ && !waiting_.contains(digest)) {
      first = failed_.empty();
      failed_.insert(digest);
      retry_at_ = std::chrono::steady_clock::now() + retry_;
    }
    const size_t others = waiting_.size();
    running_.reset();
    changed_.notify_all();
    if (!first) continue;
    lock.unlock();  // a log that blocks holds up nobody else
    LogWarning("content ", digest.Short(), " is not removed yet, ", others,
               " more wait: ", std::string(removed.message()));
    lock.lock();
  }
}

}  // namespace rootstock
