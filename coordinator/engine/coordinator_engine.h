// The engine: what rpc, http and the group streams call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/adapters/registry.h"
#include "coordinator/cluster/group_link.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/group_engine.h"
#include "coordinator/engine/router.h"

namespace rootstock {

// What the engine needs of the frontend.
struct TextPort {
  struct Open {
    int n = 1;
    std::vector<int32_t> prompt_tokens;
    std::vector<std::string> stop;
    bool include_stop_in_output = false;
    bool skip_special_tokens = true;
    uint32_t min_tokens = 0;
    bool prompt_logprobs = false;
  };
  std::function<absl::Status(const std::vector<std::string>& stop)> check_stop;
  std::function<absl::StatusOr<std::vector<int32_t>>(const std::string& text,
                                                     bool add_special_tokens, bool parse_special)>
      encode;
  std::function<std::shared_ptr<TokenSink>(Open, std::shared_ptr<GenerateSink>,
                                           std::function<void(int sample)> on_stop)>
      open;
};

// What the engine needs to know of the base's shape.
struct ModelPort {
  // Whether its heads split over the group's ranks; cannot_split with the numbers.
  std::function<absl::Status(const GroupInfo&)> check_split;
  std::function<absl::StatusOr<AdapterWays>(const AdapterContent&, const GroupInfo&,
                                            const AttachReport&)>
      ways;
  LoraShardingPolicy sharding = LoraShardingPolicy::kReplicated;  // that `ways` follows
};
ModelPort MakeModelPort(ModelSpec model, LoraShardingPolicy sharding);

struct EngineOptions {
  ServedModel model;
  GroupLimits limits;
  PoolOptions pool;
  uint32_t max_queued = 1024;                              // requests that have not begun to run
  absl::Duration step_timeout = absl::InfiniteDuration();  // a group that takes longer is lost
  std::string build;                                       // groups must be of it; empty: any
  Clock clock;                                             // monotonic
  std::function<absl::Time()> wall_clock;                  // what requests' deadlines are stated in
  TaskQueueFactory queues;
  std::shared_ptr<const EngineMetrics> metrics;
  Registry* registry = nullptr;  // outlives the engine
  TextPort text;
  ModelPort shape;
  std::function<uint64_t()> random;  // seeds and request ids; thread-safe
};

// *Thread-safe.*
class CoordinatorEngine : public Engine, public GroupDirectory {
 public:
  explicit CoordinatorEngine(EngineOptions options);
  ~CoordinatorEngine() override;  // what still runs ends with UNAVAILABLE

  absl::StatusOr<RequestNumber> Generate(GenerateRequest request,
                                         std::shared_ptr<GenerateSink> sink) override;
  absl::StatusOr<std::shared_ptr<QueuePlace>> Enter(const GenerateRequest& request) override;
  void Refused(const absl::Status& status) override;
  void Cancel(RequestNumber request) override;
  EngineStatus Status() const override;
  absl::Status Drain(absl::Time deadline) override;
  absl::Status DrainGroup(const std::string& group) override;
  void Unload(const Digest& digest, UnloadDone done) override;
  absl::Status CheckPins(const std::vector<AdapterPin>& pins) const override;
  void SetPins(std::vector<AdapterPin> pins) override;

  absl::StatusOr<Order> OnHello(const GroupInfo& info) override;
  void OnFormingLost(const std::string& group, const Epoch& epoch) override;
  absl::StatusOr<std::shared_ptr<GroupListener>> OnAttached(
      const GroupInfo& info, const AttachReport& report, std::shared_ptr<GroupLink> link) override;

 private:
  struct GroupRecord {
    GroupInfo info;
    Epoch epoch;
    bool forming = false;                  // ordered to attach, its stream stands
    std::shared_ptr<GroupEngine> engine;   // from attach until the router has heard of its loss
    std::shared_ptr<const StreamEnd> end;  // of the last one attached
    std::optional<GroupStatus> last;       // of one that is lost
    std::optional<absl::Time> lost_since;
    // The group comes back with new processes since then.
    std::optional<absl::Time> reforming_since;
    bool drained_before = false;
  };

  absl::Status Precheck(const GenerateRequest& request) const;
  absl::StatusOr<RequestPtr> Admit(GenerateRequest& request);
  absl::StatusOr<BoundModel> ResolveModel(const GenerateRequest& request);
  absl::Status CheckGroup(const GroupInfo& info) const;
  absl::Status CheckNameIsFree(const GroupInfo& info) const;  // under groups_mutex_
  bool IsForgotten(const GroupRecord& record) const;
  void ForgetGroups();
  void WasLost(GroupRecord& record);
  GroupCallbacks CallbacksFor(const std::string& group, uint64_t attach);
  // Of the attach that counts; nothing for an earlier one.
  void ShowState(const std::string& group, uint64_t attach, const char* state);
  void OnGroupGone(const std::string& group, uint64_t attach);
  void Close(const RequestPtr& request, const absl::Status& status);
  void OnAdmitted(LiveRequest& request);
  void LeaveQueue(LiveRequest& request);

  const EngineOptions options_;
  std::atomic<bool> draining_ = false;
  std::atomic<uint64_t> next_request_ = 1;
  const std::shared_ptr<QueueBound> queue_;
  std::atomic<int64_t> running_ = 0;

  mutable std::mutex live_mutex_;
  std::condition_variable live_changed_;
  std::map<uint64_t, RequestPtr> live_;  // accepted, not closed

  mutable std::mutex groups_mutex_;
  std::map<std::string, GroupRecord> groups_;
  uint64_t next_attach_ = 1;

  std::unique_ptr<Router> router_;
  std::shared_ptr<TaskQueue> forgetting_;  // groups that were lost long ago
};

}  // namespace rootstock
