#include "coordinator/frontend/frontend_thread.h"

#include <utility>

namespace rootstock {

FrontendThread::FrontendThread() : thread_([this] { Run(); }) {}

FrontendThread::~FrontendThread() { Stop(); }

void FrontendThread::Post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void FrontendThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  // A job may hold the last reference to its thread's owner.
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void FrontendThread::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::deque<std::function<void()>> jobs;
    jobs.swap(jobs_);
    lock.unlock();
    for (auto& job : jobs) {
      job();
      job = nullptr;
    }
    lock.lock();
  }
}

}  // namespace rootstock
