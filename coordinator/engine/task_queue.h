// A thread's mailbox: the only way in which the engine's threads reach each other's state.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace rootstock {

// Monotonic: never jumps with the wall clock.
using Clock = std::function<absl::Time()>;
// Starts at the wall clock's time and follows the steady one.
Clock MonotonicClock();

using Task = std::function<void()>;

// Runs tasks one at a time, those posted in order. *Thread-safe.*
class TaskQueue {
 public:
  virtual ~TaskQueue() = default;
  virtual void Post(Task task) = 0;
  // Once, not before `time`.
  virtual void PostAt(absl::Time time, Task task) = 0;
  // Forgets what PostAt was given and whose time has not come.
  virtual void ClearTimers() = 0;
  // Returns when no task runs; those not begun are dropped, later ones too. Not from a task.
  virtual void Stop() = 0;
};

using TaskQueueFactory = std::function<std::shared_ptr<TaskQueue>(const std::string& name)>;

// A thread a queue.
TaskQueueFactory ThreadTaskQueues(Clock clock);

}  // namespace rootstock
