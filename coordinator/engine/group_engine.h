// One group for the time of one attach: its sequences, slots, pages, adapters and plans.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cluster/group_link.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/live_request.h"
#include "coordinator/engine/residency/group_adapters.h"
#include "coordinator/engine/task_queue.h"
#include "coordinator/memory/page_allocator.h"

namespace rootstock {

// How KV and adapters share a group's pages.
struct PoolOptions {
  EvictionPolicy eviction = EvictionPolicy::kLru;
  double kv_floor = 0.1;  // of the pages: what loads leave to KV
  double adapter_floor = 0.05;
  uint64_t prefetch_bytes = uint64_t{1} << 30;  // of adapters fetched and not on the device yet
  // A step. More sequences may run: they take turns, so that a new one's prompt waits for none of
  // them to end. 0: as many as run.
  uint32_t max_decode_rows = 0;
};

struct GroupConfig {
  GroupInfo info;
  GroupLimits limits;
  AttachReport report;
  PoolOptions pool;
  absl::Duration step_timeout = absl::InfiniteDuration();
  Clock clock;
  std::shared_ptr<const EngineMetrics> metrics;
  // Of an adapter on this group; an error is the reason why the group can't hold it.
  std::function<absl::StatusOr<AdapterWays>(const AdapterContent&)> ways;
  std::function<AdapterHandle(const Digest&)> find_digest;
  std::function<bool(const Digest&)> has_name;  // else only what is in flight may use it
};

// What a group tells its owner, from its own thread. Must not block.
struct GroupCallbacks {
  // The request's answer is complete; its sink is to be closed with the status.
  std::function<void(const RequestPtr&, const absl::Status&)> close;
  std::function<void(LiveRequest&)> admitted;  // began to run
  std::function<void(RequestNumber)> ended;
  std::function<void(std::vector<RequestPtr>)> returned;  // to be placed again
  std::function<void(Digest, bool resident)> residency;
  std::function<void(Digest)> slow;  // its fetch takes long
  std::function<void()> draining;
  // Lost, or drained: it had nothing to do any more and left. Nothing follows.
  std::function<void(const absl::Status&, bool drained)> gone;
};

// How a group's stream ended, known before the engine's thread hears of it. Thread-safe.
struct StreamEnd {
  std::atomic<bool> over{false};
  std::atomic<int64_t> at_us{0};     // engine clock; set before `over`
  std::atomic<bool> drained{false};  // nothing was left on the group

  void Set(absl::Time now) {
    if (over) return;
    at_us = absl::ToUnixMicros(now);
    over = true;
  }
};

// Plans run one step ahead: at most two are not completed, and a plan never waits for the tokens
// of the one before it. Public calls are *thread-safe* (they post); the rest is *engine thread
// only*.
class GroupEngine {
 public:
  // INVALID_ARGUMENT/group_mismatch when the report's pages contradict each other.
  static absl::StatusOr<std::unique_ptr<GroupEngine>> Create(GroupConfig config,
                                                             std::shared_ptr<GroupLink> link,
                                                             std::shared_ptr<TaskQueue> queue,
                                                             GroupCallbacks callbacks);
  ~GroupEngine();  // not from its own thread

  // Outlives the engine: calls that come later do nothing.
  std::shared_ptr<GroupListener> MakeListener();
  void Submit(RequestPtr request);
  // The request's `abort` or `stopped` was set.
  void Poke(RequestNumber request);
  // `done`, which may be empty, is called on the engine's thread; never when the group is lost.
  void Unload(const Digest& digest, UnloadDone done);
  void SetPins(std::vector<AdapterHandle> pins);
  // Whether the group could hold all these. Any thread.
  absl::Status CheckPins(const std::vector<AdapterHandle>& pins) const;
  // Gives back what does not run, finishes the rest, then lets the group leave.
  void Drain();
  // As if the stream had ended.
  void Lose(const absl::Status& why);
  // Ends its thread: no callback follows, later calls do nothing. Not from its own thread.
  void Stop();
  GroupStatus Snapshot() const;
  std::shared_ptr<const StreamEnd> stream_end() const { return stream_end_; }

 private:
  struct SentRow {
    RequestPtr request;  // keeps the sequence alive
    Sequence* sequence;
    SequenceSlot slot;
    RowOutput output;
    uint32_t query_len;
  };
  struct SentStep {
    CommandId id;
    std::vector<SentRow> rows;
    uint32_t tokens = 0;
    bool eager = false;
  };
  class Listener;
  static constexpr size_t kMaxUncompleted = 2;  // D = 1: one beyond the one that runs

  GroupEngine(GroupConfig config, std::shared_ptr<GroupLink> link, std::shared_ptr<TaskQueue> queue,
              GroupCallbacks callbacks);
  AdapterPort MakePort();
  uint32_t usable() const { return config_.report.geometry.num_pages - 1; }
  void Post(std::function<void()> task);

  // group_engine.cc: requests and events.
  void OnSubmit(RequestPtr request);
  void OnPoke(RequestNumber number);
  void OnCompletion(Completion completion);
  void CloseRequest(LiveRequest& request, const absl::Status& status);
  RequestPtr Detach(LiveRequest& request);
  void ObserveCancel(LiveRequest& request);

  // group_residency.cc: adapters and those who wait for them.
  absl::Status AdoptResidents();
  void NoteIfNameless(const Digest& digest);
  void DropNameless();
  absl::StatusOr<AdapterFootprint> FootprintOf(const AdapterContent& content) const;
  // Of what the group reports; nothing when the adapter would not be laid out so.
  std::optional<AdapterFootprint> FootprintOf(const ResidentAdapter& found) const;
  static PoolFloors FloorsOf(const GroupConfig& config);
  absl::Status FitRequest(LiveRequest& request) const;
  absl::Status Receive(LiveRequest& request);
  void Park(Sequence& sequence);
  void Unpark(Sequence& sequence);
  bool UnparkUsable();
  Sequence* WaitingAt(Order order) const;
  void OnAdapterEvent(const GroupAdapters::Event& event);
  void CountLookups(const GroupAdapters::Event& event);
  void OnLoadFailed(const GroupAdapters::Event& event);
  static absl::Status LoadFailure(const std::string& model, const absl::Status& why);

  // group_pins.cc: adapters that stay.
  absl::StatusOr<uint32_t> PagesOf(const AdapterContent& content) const;
  uint32_t PinnedBeside(const LiveRequest& request) const;
  void OnPins(const std::vector<AdapterHandle>& pins);
  void ApplyPins();

  // group_life.cc: ticks, drain, loss, status.
  void OnDrain();
  void OnLost(const absl::Status& why);
  void OnTick();
  void TickLater();
  void GiveBackIdle();
  void GiveBack(std::vector<RequestPtr> requests);
  void Publish();

  // group_sequences.cc: what one sequence holds.
  void Enqueue(Sequence& sequence);
  void Unqueue(Sequence& sequence);
  void Admit(Sequence& sequence, const RowDecision& row);
  void StopRunning(Sequence& sequence);
  void FinishSequence(Sequence& sequence);
  void KeepPrompt(LiveRequest& request);
  void ReleasePrompt(LiveRequest& request);
  bool MayStart(const Sequence& sequence) const;

  // group_schedule.cc: who is in the next step.
  void ReserveLoads();
  // Those that `may_run` refuses keep their place in line and get no rows.
  SchedulerView MakeView(const std::function<bool(const Sequence&)>& may_run);
  Decision ScheduleApart();
  Decision Decide();

  // group_step.cc: plans and results.
  void Pump();
  void Apply(const Decision& decision);
  void AddRow(StepPlan& plan, SentStep& step, Sequence& sequence, const RowDecision& row);
  RowOutput OutputOf(const Sequence& sequence, uint32_t query_len) const;
  void SendStep(StepPlan plan, SentStep step);
  CommandId Send(decltype(Command::kind) kind);
  void ReleaseSlotsNow();
  void StepDone(SentStep step, Completion completion);
  static absl::Status StepFailure(const SentStep& step, const LiveRequest& request,
                                  const absl::Status& why);
  void ApplyResult(const SentRow& row, RowResult& result);

  const GroupConfig config_;
  const std::shared_ptr<GroupLink> link_;
  const std::shared_ptr<TaskQueue> queue_;
  const GroupCallbacks callbacks_;
  const GroupMetrics series_;
  const std::shared_ptr<StreamEnd> stream_end_ = std::make_shared<StreamEnd>();

  const PoolFloors floors_;
  PageAllocator pages_;
  GroupAdapters adapters_;
  std::unordered_map<uint64_t, RequestPtr> requests_;  // by number
  std::vector<Sequence*> running_;                     // oldest first
  std::map<Order, Sequence*> ready_;                   // waiting, adapter on the device
  std::map<Order, Sequence*> parked_;                  // waiting for their adapter
  std::unordered_set<LiveRequest*> keeping_prompts_;
  std::deque<SentStep> steps_;  // not completed
  absl::Time step_since_;       // since then the first of them is what the group has to do
  std::vector<SequenceSlot> free_slots_;
  std::vector<SequenceSlot> to_release_;
  std::vector<Sequence*> view_running_, view_waiting_;
  Order decode_turn_ = 0;  // of the last step sent
  std::map<Digest, AdapterFootprint> wanted_pins_;
  uint32_t wanted_pin_pages_ = 0;
  std::set<Digest> pinned_;  // of the wanted ones, and of those before, that took effect
  Order pins_order_ = 0;
  bool pins_pending_ = false;  // not all requests fit beside them yet
  Order last_order_ = 0;       // of the requests that came
  uint64_t next_command_ = 1;
  absl::Time last_sent_;
  Digest last_followed_;       // by the last eager step sent
  std::set<Digest> nameless_;  // on the nodes, and nobody's: to be dropped
  size_t nameless_drops_ = 0;  // under way
  bool lost_ = false;
  bool draining_ = false;
  bool left_ = false;

  mutable std::mutex status_mutex_;
  GroupStatus status_;  // but for its adapters
  std::unordered_map<Digest, ResidentAdapter> residents_;
  bool status_lost_ = false;
};

}  // namespace rootstock
