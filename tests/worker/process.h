// A child process of a test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace rootstock {

// Output goes to a file. Killed at the end when it still runs. Not thread-safe.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, or 128 + the signal; nothing when it still runs at the timeout.
  std::optional<int> Wait(std::chrono::milliseconds timeout);
  std::string Output() const;
  // Whether the output holds `text` before the timeout.
  bool Prints(const std::string& text, std::chrono::milliseconds timeout) const;
  // Processes whose parent this one is.
  std::vector<pid_t> Children() const;

 private:
  std::string output_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// A zombie counts as gone.
bool IsRunning(pid_t pid);

}  // namespace rootstock
