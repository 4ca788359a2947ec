// Loads by way of the host cache: read and verify, lay out, copy.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/blob_sink.h"
#include "common/model/model_spec.h"
#include "common/tp/tp.h"
#include "worker/device/copy_lane.h"
#include "worker/memory/host_cache.h"
#include "worker/memory/slab.h"
#include "worker/runtime/adapter_loader.h"
#include "worker/runtime/table_memory.h"
#include "worker/runtime/table_staging.h"

namespace rootstock {

// What loads of one tp_rank have in common.
struct LoaderParts {
  ModelSpec spec;
  TpPlan tp;
  int tp_rank = 0;
  DType compute_dtype = DType::kF32;
  uint32_t page_bytes = 0;
  CopyLane* lane = nullptr;    // borrowed
  HostCache* cache = nullptr;  // borrowed
  // Gives the content in pieces, verified by digest when the end is OK; an error when it is not on
  // this node, or spoilt. *Thread-safe.*
  std::function<absl::Status(const Digest&, const BlobSink&)> read;
  int build_threads = 1;
  // Of a load beside no other, enqueued with its order: what a device copies while the copying
  // thread wakes up. The first layers are always.
  uint32_t ordered_bytes = 0;
};

// Building threads make images, one copying thread brings them to pages in the order of loads; what
// is on the host already begins at once. Started after SetSlab. *Step thread only*; its threads
// share what mutex_ guards.
class TierLoader : public AdapterLoader {
 public:
  explicit TierLoader(LoaderParts parts);
  ~TierLoader() override;
  // Where pages are; with nothing under way. Borrowed.
  void SetSlab(const Slab* slab) { slab_ = slab; }

  void NotifyWhenDone(std::function<void()> done) override;
  void Stage(CommandId id, const PrefetchAdapter& prefetch) override;
  void Load(CommandId id, const LoadAdapter& load) override;
  std::optional<absl::Status> OutcomeOf(CommandId id) override;
  bool WasInHost(CommandId id) override;
  absl::StatusOr<std::unique_ptr<DeviceAdapter>> TakeEarly(CommandId id) override;
  absl::Status Follow(CommandId id, int layer) override;
  std::unique_ptr<DeviceAdapter> Take(CommandId id) override;
  void Forget(CommandId id) override;
  void ForgetAll() override;
  HostCache& host() override { return *parts_.cache; }
  LoadStats stats() override;

 private:
  using Image = std::shared_ptr<const HostImage>;
  struct Job {
    HostImageKey key;
    LoraSharding sharding = LoraSharding::kReplicated;
    std::optional<LoadAdapter> load;  // else a Stage
    bool was_in_host = false;
    std::optional<absl::Status> outcome;
    // Of a load, once its tables are made.
    bool has_tables = false;
    std::unique_ptr<DeviceAdapter> adapter;
    std::vector<CopyLane::Mark> layers;  // of those that are enqueued
    int followed = -1;                   // the last layer that a step was told to follow
  };
  using Waiters = std::vector<std::pair<CommandId, std::shared_ptr<Job>>>;
  // A load from when its image is there.
  struct Copy {
    std::shared_ptr<Job> job;
    Image image;
    // From its begin on: what is enqueued so far.
    bool begun = false;
    absl::Status status;
    StagedTables tables;  // on the host
    int layer = 0;
    uint32_t page = 0;
    uint64_t bytes = 0;
  };

  void Start(CommandId id, std::shared_ptr<Job> job);
  std::shared_ptr<Job> Find(CommandId id);  // with mutex_ held; null when absent

  void BuildLoop();
  absl::StatusOr<Image> Build(const HostImageKey& key, LoraSharding sharding, bool for_load);
  absl::StatusOr<std::shared_ptr<HostImage>> MakeRoom(uint32_t num_pages, bool for_load);
  static LayerEnds EndsOf(const AdapterLayout& layout, int tp_rank, int num_layers);
  // With mutex_ held.
  void EndBuild(const HostImageKey& key, const absl::StatusOr<Image>& image);

  void CopyLoop();
  void StartCopy(Copy copy);
  // Tables and groups of layers, the first and as many as `bytes` take; an error is kept in `copy`.
  void Begin(uint32_t bytes, Copy& copy);
  absl::Status EnqueueTables(Copy& copy);
  // A step may follow each. The tables go with the first.
  absl::Status EnqueueGroup(Copy& copy);
  absl::Status CopyPagesTo(uint32_t end, Copy& copy);

  const LoaderParts parts_;
  const Slab* slab_ = nullptr;
  TableStaging staging_;
  TableMemory table_memory_;
  std::function<void()> on_done_;

  // Held for moments, and each waits for its own: a thread that is woken for nothing may take the
  // processor from one that holds what the step thread wants.
  std::mutex mutex_;
  std::condition_variable build_;     // threads that build
  std::condition_variable copy_;      // the one that copies
  std::condition_variable progress_;  // the step thread, behind a load
  std::map<CommandId, std::shared_ptr<Job>> jobs_;
  std::map<HostImageKey, Waiters> builds_;  // for an image that is being built, or is to be
  std::deque<HostImageKey> to_build_;
  std::deque<Copy> to_copy_;
  int busy_ = 0;             // builds and copies that have begun and not ended
  bool forgetting_ = false;  // what ends is followed by nothing
  uint64_t copied_bytes_ = 0;
  double stall_seconds_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rootstock
