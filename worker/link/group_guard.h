// The other processes of a group on this host: noticed when they are gone or stopped, and ended
// with this one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/plan/plan.h"

namespace rootstock {

// A group is one failure domain. mpirun takes seconds to end the ranks that are left; a rank that
// waits on a GPU, or for one that a signal stopped, notices nothing at all. A rank that is only
// slow is never taken for lost: the system says which processes are stopped. *Thread-safe.*
class GroupGuard {
 public:
  struct Peer {
    pid_t pid = 0;
    std::string name;  // "tp_rank 1"
  };
  using OnLoss = std::function<void(const GroupGuard& guard, const std::string& why)>;
  // Between looks at the peers. One that was killed is told to be gone when it has given back all
  // that it held: of a GPU in use by others too that takes up to half a second, and this rank's own
  // end as long again. A look sees that it has begun to.
  static constexpr std::chrono::milliseconds kBetweenLooks{100};
  // How long a peer may be stopped: so many looks in turn must find it so. Looks, for time goes by
  // while this process is stopped as well.
  static constexpr int kLooks = 30;

  // Watches processes that run; those that can't be watched are left out, and the log says so.
  // on_loss is called on the guard's thread, once, when one of them has ended or stays stopped.
  GroupGuard(const std::vector<Peer>& peers, OnLoss on_loss,
             std::chrono::milliseconds between_looks = kBetweenLooks);
  ~GroupGuard();  // nothing is watched any more
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  // SIGKILL to those that are left, stopped ones too.
  void KillPeers() const;

 private:
  struct Watched {
    int fd = -1;
    Peer peer;
    int stopped = 0;  // looks in turn that found it so
  };
  void Run(const OnLoss& on_loss, std::chrono::milliseconds between_looks);
  // Why the group is lost, as far as a look tells; empty: it is not.
  std::string Look();

  std::vector<Watched> watched_;
  int end_ = -1;
  std::thread thread_;
};

// Ends the other ranks of this host and this process. The GPU drops what its process left running;
// mpirun ends what is on other hosts.
[[noreturn]] void EndGroup(const GroupGuard& guard, const std::string& why);

// Whether process `pid` has the parent of this one.
bool IsSibling(pid_t pid);

// The other ranks of this rank's host. mpirun is the parent of all of them: an id of another PID
// namespace is never taken for a rank's.
std::vector<GroupGuard::Peer> PeersOnHost(const GroupInfo& info, int tp_rank);

}  // namespace rootstock
