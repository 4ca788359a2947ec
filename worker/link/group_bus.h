// What the tp_ranks of a group tell each other beside the collectives of a forward pass: the
// leader's messages in one order, and the conjunction of outcomes.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rootstock {

enum class BusKind : uint32_t {
  kAttach,   // bytes: v1.AttachOrder
  kCommand,  // bytes: v1.Command
  kCollect,  // look at what runs beside the steps
  kFinish,   // complete the oldest step that was left running
  kExit,     // bytes: the reason; empty: with exit code 0
};

struct BusMessage {
  BusKind kind = BusKind::kCollect;
  std::string bytes;
};

// On duplicated communicators of its own. An MPI error aborts the job: a lost rank fails its group.
// *Step thread only.*
class GroupBus {
 public:
  explicit GroupBus(MPI_Comm comm);
  ~GroupBus();
  GroupBus(const GroupBus&) = delete;
  GroupBus& operator=(const GroupBus&) = delete;

  int tp_rank() const { return tp_rank_; }
  int tp_size() const { return tp_size_; }

  // tp_rank 0.
  void Send(const BusMessage& message);
  // The others. Waits without burning a core: at first it yields, then it sleeps up to 1 ms. busy:
  // a step runs, whose end the leader will tell, so that patience holds.
  BusMessage Receive(bool busy = false);

  // The same on every rank: OK if all are, else the lowest failing rank's status, which names the
  // rank unless all ranks failed.
  absl::Status Agree(const absl::Status& mine);
  // And in the same exchange a number of each rank: by rank. at_once: no rank has a reason to be
  // late, so that patience holds.
  absl::Status Agree(const absl::Status& mine, uint64_t number, std::vector<uint64_t>& numbers,
                     bool at_once = false);
  // The same, for work in which the ranks meet now and then and which an error of one ends for all:
  // an error that they agreed on is every later meeting's, without asking. So a rank that fails
  // goes to the last meeting at once, which is the others' next, and nobody waits for it at a later
  // one.
  absl::Status Meet(const absl::Status& mine);
  // How long a rank waits for one that has no reason to be late, before it takes it for lost and
  // calls on_loss, which ends the process; without it, for ever.
  void set_patience(std::chrono::milliseconds patience,
                    std::function<void(const std::string& why)> on_loss) {
    patience_ = patience;
    on_loss_ = std::move(on_loss);
  }
  // By rank.
  std::vector<std::string> AllGather(const std::string& mine);
  // The same for texts of one length on every rank, in one exchange.
  std::vector<std::string> AllGatherEqual(const std::string& mine);

 private:
  std::string BroadcastBytes(std::string bytes, int root);
  void BroadcastPayload(std::string& bytes);
  // Of a message that its receivers wait for, or are about to.
  void WaitPatiently(MPI_Request* request) const;
  // Calls on_loss once patience is over.
  void CheckPatience(std::chrono::steady_clock::time_point start) const;

  MPI_Comm plans_ = MPI_COMM_NULL;
  MPI_Comm status_ = MPI_COMM_NULL;
  int tp_rank_ = 0;
  int tp_size_ = 1;
  absl::Status met_;
  std::optional<std::chrono::milliseconds> patience_;
  std::function<void(const std::string& why)> on_loss_;
};

}  // namespace rootstock
