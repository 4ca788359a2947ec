#include "worker/link/group_guard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace rootstock {
namespace {

constexpr unsigned kExiting = 4;  // the kernel's PF_EXITING

struct ProcessState {
  char state = 0;
  pid_t parent = 0;    // 0: nothing is known; whether it is gone says its pidfd
  unsigned flags = 0;  // of its first thread
};

ProcessState StateOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // After the name in brackets, which may hold anything: state, parent, four numbers, flags.
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  ProcessState out;
  int group = 0, session = 0, terminal = 0, foreground = 0;
  rest >> out.state >> out.parent >> group >> session >> terminal >> foreground >> out.flags;
  return rest ? out : ProcessState{};
}

}  // namespace

bool IsSibling(pid_t pid) { return StateOf(pid).parent == getppid(); }

std::vector<GroupGuard::Peer> PeersOnHost(const GroupInfo& info, int tp_rank) {
  std::vector<GroupGuard::Peer> out;
  for (size_t r = 0; r < info.ranks.size(); ++r) {
    const auto pid = static_cast<pid_t>(info.ranks[r].pid);
    const bool here = info.ranks[r].host == info.ranks[tp_rank].host && IsSibling(pid);
    if (here && pid != getpid()) out.push_back({pid, absl::StrCat("tp_rank ", r)});
  }
  return out;
}

GroupGuard::GroupGuard(const std::vector<Peer>& peers, OnLoss on_loss,
                       std::chrono::milliseconds between_looks)
    : end_(eventfd(0, EFD_CLOEXEC)) {
  for (const Peer& peer : peers) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (fd >= 0) {
      watched_.push_back({fd, peer});
    } else {
      LogWarning(peer.name, " (process ", peer.pid, ") is not watched: ", std::strerror(errno));
    }
  }
  thread_ = std::thread(
      [this, between_looks, on_loss = std::move(on_loss)] { Run(on_loss, between_looks); });
}

GroupGuard::~GroupGuard() {
  const uint64_t one = 1;
  const ssize_t written = write(end_, &one, sizeof(one));
  if (written == sizeof(one)) thread_.join();
  for (const Watched& watched : watched_) close(watched.fd);
  close(end_);
}

std::string GroupGuard::Look() {
  for (Watched& watched : watched_) {
    const ProcessState state = StateOf(watched.peer.pid);
    if (state.parent == 0) continue;
    if (state.state == 'Z' || (state.flags & kExiting) != 0) {
      return absl::StrCat(watched.peer.name, " is gone");
    }
    // Not one that a debugger holds: that is a 't'.
    watched.stopped = state.state == 'T' ? watched.stopped + 1 : 0;
    if (watched.stopped == kLooks) return absl::StrCat(watched.peer.name, " is stopped");
  }
  return "";
}

void GroupGuard::Run(const OnLoss& on_loss, std::chrono::milliseconds between_looks) {
  std::vector<pollfd> polled = {{end_, POLLIN, 0}};
  for (const Watched& watched : watched_) polled.push_back({watched.fd, POLLIN, 0});
  const int timeout = watched_.empty() ? -1 : static_cast<int>(between_looks.count());
  for (;;) {
    const int ready = poll(polled.data(), polled.size(), timeout);
    if (ready < 0) continue;  // a signal
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      return on_loss(*this, absl::StrCat(watched_[i - 1].peer.name, " is gone"));
    }
    if (const std::string why = Look(); !why.empty()) return on_loss(*this, why);
  }
}

void EndGroup(const GroupGuard& guard, const std::string& why) {
  LogError("group lost: ", why);
  guard.KillPeers();
  _exit(1);
}

void GroupGuard::KillPeers() const {
  for (const Watched& watched : watched_) {
    syscall(SYS_pidfd_send_signal, watched.fd, SIGKILL, nullptr, 0);
  }
}

}  // namespace rootstock
