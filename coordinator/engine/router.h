// The waiting queue and placement over groups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "coordinator/engine/group_engine.h"
#include "coordinator/engine/live_request.h"
#include "coordinator/engine/task_queue.h"

namespace rootstock {

// Which group takes a request: one that has its adapter, then the least loaded. Each group's line
// is bounded, and so is the part of it that waits for adapters, so that neither fills the other's.
// Pure; table-tested.
struct PlacementView {
  bool ready = false;
  bool has_adapter = true;  // also for the base
  bool slow = false;        // it is being fetched for long: who waits for it stands in no line
  uint32_t hot_line = 0;    // requests there that have not run yet, adapter on the device
  uint32_t cold_line = 0;   // same, adapter not yet
  uint32_t outstanding = 0;
  uint32_t line_bound = 0;  // of each of the two
};
// Index into `groups`, or -1: the request waits.
int Place(const std::vector<PlacementView>& groups);

// Public calls are *thread-safe* (they post); the rest is *router thread only*.
class Router {
 public:
  using CloseFn = std::function<void(const RequestPtr&, const absl::Status&)>;
  // find_digest: content of a pin. has_name: whether later requests may come for the content.
  Router(std::shared_ptr<TaskQueue> queue, Clock clock, CloseFn close,
         std::function<AdapterHandle(const Digest&)> find_digest,
         std::function<bool(const Digest&)> has_name);
  ~Router();  // stops its thread, then the groups'

  void Submit(RequestPtr request);
  void Cancel(RequestNumber request);
  // To be called when `stopped` was set; may be called after the router's end.
  std::function<void()> StopSignal(RequestNumber request);
  // Ends every request, and those that are still on their way here.
  void DrainOut();
  // Groups by attach number.
  void GroupUp(uint64_t attach, std::shared_ptr<GroupEngine> engine, uint32_t max_num_seqs);
  void DrainGroup(uint64_t attach);
  void Admitted(uint64_t attach, RequestNumber request);
  void Ended(uint64_t attach, RequestNumber request);
  void Returned(uint64_t attach, std::vector<RequestPtr> requests);
  void ResidencyChanged(uint64_t attach, const Digest& digest, bool resident);
  // Its fetch on the group takes long: those who wait for it fill the group's line no longer.
  void FetchIsSlow(uint64_t attach, const Digest& digest);
  // As Engine says. Later requests for the adapter are not placed until it is done.
  void Unload(const Digest& digest, UnloadDone done);
  void SetPins(std::vector<AdapterPin> pins);
  // `released` runs on the router's thread, when it has let go of the group's engine.
  void Gone(uint64_t attach, std::function<void()> released);
  // A group of this name, should one come, is another.
  void Forget(const std::string& group);

 private:
  enum class Line { kNone, kHot, kCold };
  struct Known {
    RequestPtr request;
    uint64_t attach = 0;  // 0: waits here
    Line line = Line::kNone;
  };
  struct Group {
    std::shared_ptr<GroupEngine> engine;
    bool draining = false;
    uint32_t line_bound = 0;
    uint32_t hot_line = 0;
    uint32_t cold_line = 0;
    uint32_t outstanding = 0;
    std::unordered_set<Digest> residents;
    std::unordered_set<Digest> slow;  // being fetched, for long
    std::string name;
  };
  struct Unloading {
    std::set<uint64_t> before;  // requests that are to end first; others wait
    bool ordered = false;
    bool retired = false;       // no name had it when it was asked for
    std::set<uint64_t> groups;  // that have not answered
    TierBytes freed;
    std::vector<UnloadDone> done;
  };
  using Unloads = std::multimap<Digest, Unloading>;

  void OnSubmit(RequestPtr request);
  void OnDeadline();
  void ArmDeadline();  // to be called when deadlines_ changed
  void ForgetDeadline(const LiveRequest& request);
  // Nobody else sets a request's `abort`.
  void Abort(RequestNumber number, AbortCause cause, absl::Time at);
  bool HeldBack(const LiveRequest& request) const;
  void RequestEnded(const LiveRequest& request);
  void OnUnload(const Digest& digest, UnloadDone done);
  void OrderUnload(Unloads::iterator unload);
  void Unloaded(const Digest& digest, uint64_t attach, const TierBytes& freed);
  void FinishUnload(Unloads::iterator unload);
  void EndRetirements(const Digest& digest);
  void TellPins(const Group& group) const;
  void LeaveLine(Known& known);
  void TakeBack(Known& known);
  void PlaceAll();
  bool PlaceOne(Known& known);
  void CloseHere(RequestNumber number, const absl::Status& status);

  const std::shared_ptr<TaskQueue> queue_;
  const Clock clock_;
  const CloseFn close_;
  std::map<uint64_t, Group> groups_;
  std::map<uint64_t, Known> requests_;  // by number: arrival order
  std::set<uint64_t> waiting_;
  Unloads unloads_;
  // Of groups that were lost before they had unloaded them: when they come back.
  std::map<std::string, std::set<Digest>> unload_at_attach_;
  std::vector<AdapterPin> pins_;
  const std::function<AdapterHandle(const Digest&)> find_digest_;
  const std::function<bool(const Digest&)> has_name_;
  bool drained_out_ = false;
  // Of requests_ that have one. The queue has one timer, at the nearest.
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  absl::Time armed_ = absl::InfiniteFuture();
};

}  // namespace rootstock
