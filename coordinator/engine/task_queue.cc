#include "coordinator/engine/task_queue.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

namespace rootstock {
namespace {

class ThreadTaskQueue : public TaskQueue {
 public:
  ThreadTaskQueue(const std::string& name, Clock clock) : clock_(std::move(clock)) {
    thread_ = std::thread([this] { Loop(); });
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }
  ~ThreadTaskQueue() override { Stop(); }

  void Post(Task task) override {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  void PostAt(absl::Time time, Task task) override {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    timers_.emplace(time, std::move(task));
    changed_.notify_one();
  }
  void ClearTimers() override {
    std::multimap<absl::Time, Task> timers;  // what they capture goes outside the lock
    const std::lock_guard lock(mutex_);
    timers.swap(timers_);
  }
  void Stop() override {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_one();
    }
    const std::lock_guard join(join_mutex_);
    if (thread_.joinable()) thread_.join();
    std::deque<Task> tasks;
    std::multimap<absl::Time, Task> timers;
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);  // what they capture goes outside the thread that is gone
    timers.swap(timers_);
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      if (!timers_.empty() && timers_.begin()->first <= clock_()) {
        tasks_.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
      if (!tasks_.empty()) {
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
      } else if (timers_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, absl::ToChronoNanoseconds(timers_.begin()->first - clock_()));
      }
    }
  }

  const Clock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::multimap<absl::Time, Task> timers_;
  bool stopped_ = false;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

Clock MonotonicClock() {
  const absl::Time wall = absl::Now();
  const auto steady = std::chrono::steady_clock::now();
  return
      [wall, steady] { return wall + absl::FromChrono(std::chrono::steady_clock::now() - steady); };
}

TaskQueueFactory ThreadTaskQueues(Clock clock) {
  return [clock = std::move(clock)](const std::string& name) -> std::shared_ptr<TaskQueue> {
    return std::make_shared<ThreadTaskQueue>(name, clock);
  };
}

}  // namespace rootstock
