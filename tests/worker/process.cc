#include "tests/worker/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(5);

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// The state letter and the parent of /proc/PID/stat, which follow the name in brackets.
std::optional<std::pair<char, pid_t>> StateOf(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  rest >> state >> parent;
  return std::pair(state, parent);
}

}  // namespace

Process::Process(const std::vector<std::string>& command) {
  static std::atomic<int> count{0};
  output_ = std::filesystem::temp_directory_path() /
            ("process." + std::to_string(getpid()) + "." + std::to_string(++count));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  const int fd = open(output_.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  dup2(fd, 1);
  dup2(fd, 2);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (!Wait(std::chrono::milliseconds(0)).has_value()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove(output_);
}

void Process::Signal(int signal) const { kill(pid_, signal); }

std::optional<int> Process::Wait(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (!code_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (Clock::now() >= deadline) {
      return std::nullopt;
    } else {
      std::this_thread::sleep_for(kLook);
    }
  }
  return code_;
}

std::string Process::Output() const { return ReadFile(output_); }

bool Process::Prints(const std::string& text, std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  while (Output().find(text) == std::string::npos) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

std::vector<pid_t> Process::Children() const {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    if (const auto state = StateOf(pid); state && state->second == pid_) out.push_back(pid);
  }
  return out;
}

bool IsRunning(pid_t pid) {
  const auto state = StateOf(pid);
  return state.has_value() && state->first != 'Z';
}

}  // namespace rootstock
