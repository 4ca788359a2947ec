// SIGUSR1 and SIGTERM as calls instead of interruptions.
#pragma once

#include <functional>
#include <thread>

namespace rootstock {

// Blocks SIGUSR1, SIGTERM and SIGUSR2 for the calling thread and those it starts. First in main.
void BlockDrainSignals();

// The process dies with the one that started it (mpirun), when it was started by mpirun.
void DieWithMpirun();

// Calls `on_signal` on a thread of its own for each SIGUSR1 or SIGTERM of this process, which must
// be blocked. Others wait. *Thread-safe.*
class SignalThread {
 public:
  explicit SignalThread(std::function<void()> on_signal);
  ~SignalThread();

 private:
  std::thread thread_;
};

}  // namespace rootstock
