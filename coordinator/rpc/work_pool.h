// Threads for what must not run on the transport's own: tokenization, registration, reads.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rootstock {

// Runs jobs in order on a few threads. Bounded. Thread-safe.
class WorkPool {
 public:
  // `what` its jobs are, for the error of those that it does not take.
  WorkPool(int threads, size_t max_waiting, std::string what = "calls");
  ~WorkPool();  // after the jobs that wait
  // False: too many wait, the job was not taken.
  [[nodiscard]] bool Post(std::function<void()> job);
  const std::string& what() const { return what_; }
  size_t waiting() const;

 private:
  void Run();

  const size_t max_waiting_;
  const std::string what_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rootstock
