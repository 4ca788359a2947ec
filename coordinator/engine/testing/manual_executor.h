// Task queues without threads, under a virtual clock.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/task_queue.h"

namespace rootstock {

// Runs the tasks of its queues one at a time, each queue in order, the queues in random turn.
// Test thread only.
class ManualExecutor {
 public:
  explicit ManualExecutor(uint32_t seed) : random_(seed) {}

  Clock clock() {
    return [this] { return now_; };
  }
  TaskQueueFactory queues() {
    return [this](const std::string&) -> std::shared_ptr<TaskQueue> {
      auto queue = std::make_shared<Queue>();
      queues_.push_back(queue);
      return queue;
    };
  }
  bool RunOne() {
    std::erase_if(queues_, [](const auto& q) { return q->stopped; });
    std::vector<std::shared_ptr<Queue>> busy;
    for (const auto& q : queues_) {
      if (!q->timers.empty() && q->timers.begin()->first <= now_) {
        q->tasks.push_back(std::move(q->timers.begin()->second));
        q->timers.erase(q->timers.begin());
      }
      if (!q->tasks.empty()) busy.push_back(q);
    }
    if (busy.empty()) return false;
    const auto chosen = busy[random_() % busy.size()];
    Task task = std::move(chosen->tasks.front());
    chosen->tasks.pop_front();
    task();
    return true;
  }
  void RunAll() {
    while (RunOne()) {
    }
  }
  void Advance(absl::Duration by) { now_ += by; }
  // Queues whose owners are about.
  size_t queues_in_use() const {
    return static_cast<size_t>(
        std::count_if(queues_.begin(), queues_.end(), [](const auto& q) { return !q->stopped; }));
  }
  size_t timers() const {
    size_t n = 0;
    for (const auto& q : queues_) n += q->timers.size();
    return n;
  }

 private:
  struct Queue : TaskQueue {
    void Post(Task task) override {
      if (!stopped) tasks.push_back(std::move(task));
    }
    void PostAt(absl::Time time, Task task) override {
      if (!stopped) timers.emplace(time, std::move(task));
    }
    void ClearTimers() override { timers.clear(); }
    void Stop() override {
      stopped = true;
      tasks.clear();
      timers.clear();
    }
    std::deque<Task> tasks;
    std::multimap<absl::Time, Task> timers;
    bool stopped = false;
  };

  std::mt19937 random_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::vector<std::shared_ptr<Queue>> queues_;
};

}  // namespace rootstock
