// A group of tp_ranks on the threads of one process, driven without a coordinator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/canonical.h"
#include "common/model/model_spec.h"
#include "worker/lora/adapter_table.h"
#include "worker/model/model.h"
#include "worker/ops/backend.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {

// The binaries named parity_…_gpu_test are built with ROOTSTOCK_PARITY_GPU: one rank on GPU 0, in
// f32.
#ifdef ROOTSTOCK_PARITY_GPU
inline constexpr bool kParityGpu = true;
#else
inline constexpr bool kParityGpu = false;
#endif
inline constexpr int kMaxParityTpSize = kParityGpu ? 1 : 8;

struct GroupOptions {
  int tp_size = 1;
  int threads = 1;                   // of each rank
  DType dtype = DType::kF32;         // of weights
  bool dummy_weights = false;        // random ones; the directory holds a config only
  bool cuda = kParityGpu;            // all ranks on GPU 0
  DType compute_type = DType::kF32;  // on the GPU
  uint32_t page_tokens = 16;
  uint32_t num_pages = 400;
  int max_tokens = 512;
  uint32_t seed = 1;                             // of page choice
  std::function<void(Backend&)> change_backend;  // of each rank, before it makes anything
};

struct TestRequest {
  std::vector<int32_t> prompt;
  std::vector<std::string> adapters;  // names given to Load; summed in order
  int max_tokens = 1;
  int arrival = 0;              // step from which it runs
  std::vector<int32_t> forced;  // [max_tokens], which follow instead of the likeliest; empty: none
  // Results:
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // [max_tokens][vocab], that each token was taken from
};

// How the adapters of a group are sharded, one after the other.
enum class ShardingMix { kReplicated, kFullySharded, kBoth };
inline LoraSharding ShardingOf(ShardingMix mix, size_t adapter) {
  if (mix == ShardingMix::kBoth) return static_cast<LoraSharding>(adapter % 2);
  return mix == ShardingMix::kReplicated ? LoraSharding::kReplicated : LoraSharding::kFullySharded;
}
// Loads of a group, an eviction between each two. One rank has nothing to shard.
inline std::vector<ShardingMix> ShardingMixes(int tp_size) {
  if (tp_size == 1) return {ShardingMix::kReplicated, ShardingMix::kReplicated};
  return {ShardingMix::kReplicated, ShardingMix::kFullySharded, ShardingMix::kBoth,
          ShardingMix::kFullySharded, ShardingMix::kReplicated};
}

// *One thread.*
class TestGroup {
 public:
  static absl::StatusOr<std::unique_ptr<TestGroup>> Create(const std::filesystem::path& model_dir,
                                                           const GroupOptions& options);

  // Places the adapter on free pages, not those it had before while others are free.
  absl::Status Load(const std::string& name, const std::string& canonical_blob,
                    LoraSharding sharding = LoraSharding::kReplicated);
  absl::Status Evict(const std::string& name);
  // Greedy generation of all in one continuous batch; at most `chunk` prompt tokens of a sequence
  // a step. Pages of a finished sequence are poisoned.
  absl::Status Run(std::vector<TestRequest>& requests, int chunk);

  const ModelSpec& spec() const { return spec_; }
  const ForwardStats& last_step(int tp_rank) const { return ranks_[tp_rank].model->last_step(); }
  const std::vector<PageId>& adapter_pages(const std::string& name) const {
    return adapters_.at(name);
  }
  size_t free_pages() const { return free_.size(); }
  const CollectiveStats& collectives(int tp_rank) const {
    return ranks_[tp_rank].communicator->stats();
  }

 private:
  struct Rank {
    Backend backend;
    std::unique_ptr<ThreadCommunicator> communicator;
    std::unique_ptr<ModelWeights> weights;
    std::unique_ptr<Slab> slab;
    std::unique_ptr<Ops> ops;
    std::unique_ptr<Model> model;
    std::map<std::string, std::unique_ptr<DeviceAdapter>> adapters;
  };
  struct Running {
    TestRequest* request;
    std::vector<int32_t> tokens;  // prompt and output
    std::vector<uint32_t> pages;
    int done = 0;  // positions whose KV is in pages
  };

  absl::Status CreateRanks(const std::filesystem::path& model_dir);
  absl::Status CreateRank(int tp_rank, const std::filesystem::path& model_dir);
  uint32_t TakePage();
  absl::Status FreePage(uint32_t page);
  // The rows of one step, of all that arrived; segments for `tp_rank`'s adapters.
  ForwardBatch MakeBatch(std::vector<Running>& running, int step, int chunk,
                         std::vector<Running*>& outputs);
  void AddSegments(const Running& sequence, int begin, int end, int tp_rank, ForwardBatch& batch);
  // Logits on the host.
  absl::StatusOr<std::vector<float>> Forward(const std::vector<ForwardBatch>& batches);
  void Advance(Running& sequence, std::span<const float> logits);

  ModelSpec spec_;
  TpPlan tp_;
  GroupOptions options_;
  PageGeometry geometry_;
  std::shared_ptr<ThreadGroup> threads_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> free_;
  std::map<std::string, std::vector<PageId>> adapters_;
  std::mt19937 random_;
};

}  // namespace rootstock
