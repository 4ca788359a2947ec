// Test peer: loads that end when they are told to.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "worker/device/cpu_copy_lane.h"
#include "worker/runtime/adapter_loader.h"

namespace rootstock {

// Every adapter is the smallest there is. *Step thread only.*
class FakeLoader : public AdapterLoader {
 public:
  FakeLoader(const PageGeometry& geometry, Device& device);

  void NotifyWhenDone(std::function<void()> done) override { done_ = std::move(done); }
  void Stage(CommandId id, const PrefetchAdapter& prefetch) override;
  void Load(CommandId id, const LoadAdapter& load) override;
  std::optional<absl::Status> OutcomeOf(CommandId id) override;
  bool WasInHost(CommandId id) override { return false; }
  absl::StatusOr<std::unique_ptr<DeviceAdapter>> TakeEarly(CommandId id) override;
  absl::Status Follow(CommandId id, int layer) override;
  std::unique_ptr<DeviceAdapter> Take(CommandId id) override;
  void Forget(CommandId id) override { jobs_.erase(id); }
  void ForgetAll() override { jobs_.clear(); }
  HostCache& host() override { return host_; }
  LoadStats stats() override { return load_stats; }

  // The end of one that was held.
  void End(CommandId id, absl::Status outcome = absl::OkStatus());

  bool hold = false;           // loads don't end by themselves
  std::set<uint64_t> refused;  // layout ids that loads fail on
  std::vector<int> followed;   // layers
  LoadStats load_stats;

 private:
  struct Job {
    std::optional<LoadAdapter> load;
    std::optional<absl::Status> outcome;
  };

  const PageGeometry geometry_;
  Device& device_;
  CpuCopyLane lane_;
  HostCache host_;
  std::function<void()> done_;
  std::map<CommandId, Job> jobs_;
};

}  // namespace rootstock
