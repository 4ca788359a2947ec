#include "coordinator/rpc/work_pool.h"

#include <utility>

namespace rootstock {

WorkPool::WorkPool(int threads, size_t max_waiting, std::string what)
    : max_waiting_(max_waiting), what_(std::move(what)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::Post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (jobs_.size() >= max_waiting_) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

size_t WorkPool::waiting() const {
  std::lock_guard lock(mutex_);
  return jobs_.size();
}

void WorkPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace rootstock
