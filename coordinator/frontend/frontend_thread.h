// One thread of the frontend, and its queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace rootstock {

// Runs jobs one after the other. Not bounded here: a request's jobs are bounded by its tokens.
// Thread-safe.
class FrontendThread {
 public:
  FrontendThread();
  ~FrontendThread();  // as Stop
  void Post(std::function<void()> job);
  // Runs what was posted, then ends the thread. Later jobs are dropped.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rootstock
