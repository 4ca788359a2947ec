// One tp_rank with rows and adapters to run steps of, without coordinator and link: alone, or one
// of the processes of mpirun, a GPU each.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/layout/adapter_layout.h"
#include "worker/model/model.h"
#include "worker/ops/backend.h"
#include "worker/parallel/communicator.h"

namespace rootstock {

constexpr int kPrefillTokens = 2048;  // of a step that runs prompts

struct StepRigOptions {
  std::string model;  // Hugging Face directory
  bool dummy_weights = false;
  bool cuda = false;   // else the host's processor
  bool eager = false;  // no graphs
  DType dtype = DType::kBF16;
  int32_t threads = 0;                    // 0: the cores this process may use
  std::vector<std::string> adapter_dirs;  // PEFT directories, in turn
  std::vector<int> lora_ranks;            // any: random adapters of these, in turn, on all
                                          // projections instead
  int32_t adapters = 8;
  int32_t rows = 16;
  int32_t context = 128;  // tokens a row before the first decode step
  int32_t steps = 32;     // decode steps at most after it
  int32_t alone_of = 0;   // > 1: the share of one tp_rank of so many, the others left out
  LoraSharding sharding = LoraSharding::kReplicated;
};

// Row i of `rows` runs with adapter i mod `adapters`.
struct StepCase {
  int rows = 0;
  int adapters = 0;
  int lora_rank = 0;  // > 0: rows whose adapter has another rank run without
  friend auto operator<=>(const StepCase&, const StepCase&) = default;
};

// Every rank makes the same calls. *One thread.*
class StepRig {
 public:
  // Without adapters.
  static absl::StatusOr<std::unique_ptr<StepRig>> Create(const StepRigOptions& options);
  absl::Status LoadAdapters();
  void DropAdapters() { adapters_.clear(); }

  // Seconds to run the prompts of all rows.
  absl::StatusOr<double> Prefill(int adapters);
  // Seconds of each of options.steps greedy decode steps after the prompts, the first left out; a
  // step is enqueued behind the one that runs, as a worker does.
  absl::StatusOr<std::vector<double>> Decode(const StepCase& c);
  // Seconds a step while nobody waits for a result: what the device alone takes.
  absl::StatusOr<double> DecodeUnwatched(const StepCase& c);
  // What the ranks call during a decode step.
  absl::StatusOr<CollectiveStats> CollectivesOf(const StepCase& c);
  // Seconds from the start of a step to its tokens: an ordinary one, and the first after an adapter
  // was loaded anew.
  struct AfterLoad {
    double ordinary = 0;
    double first = 0;
  };
  absl::StatusOr<AfterLoad> StepAfterLoad(const StepCase& c);
  // The options.steps greedy tokens of each row after its prompt of options.context ids.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Continue(
      const std::vector<std::vector<int32_t>>& prompts, int adapters);

  int tp_size() const { return tp_.tp_size(); }
  // What a decode step must read on this rank: weights, KV, distinct adapters.
  uint64_t StepBytes(const StepCase& c) const;
  // Of the bytes of an adapter of that lora_rank on all projections, the largest part that a
  // tp_rank holds, before pages are rounded up.
  absl::StatusOr<double> LargestShare(int lora_rank) const;
  // Operations of the prompts of all rows without adapters: projections, attention, head.
  double PrefillFlops() const;
  uint64_t pool_bytes() const { return uint64_t{geometry_.num_pages} * geometry_.page_bytes; }

 private:
  struct Row {
    std::vector<uint32_t> pages;
  };

  explicit StepRig(const StepRigOptions& options) : options_(options) {}
  absl::Status SetUp();
  absl::Status MakePages();
  absl::Status LoadWeights();
  absl::Status LoadFile(int adapter);
  absl::Status MakeRandomAdapter(int adapter);
  std::vector<PageId> PagesOf(int adapter, uint32_t count);
  int LoraRankOf(int adapter) const;
  void AppendRow(int row, int position, std::span<const int32_t> ids, const StepCase& c,
                 ForwardBatch& batch) const;
  std::vector<int32_t> RandomIds(int count);
  absl::Status Start(const StepCase& c, int step);
  // Enqueues a greedy token of each row; every rank's rows end with it.
  absl::Status Sample(const float* logits, const std::vector<uint32_t>& rows);
  // Waits for the oldest Sample; outcomes on tp_rank 0.
  absl::StatusOr<std::span<const SampleOutcome>> Finish();

  const StepRigOptions options_;
  int threads_ = 0;
  ModelSpec spec_;
  TpPlan tp_;
  PageGeometry geometry_;
  Backend backend_;
  std::unique_ptr<Communicator> communicator_;  // outlives the graphs that hold its calls
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<Ops> ops_;
  int tp_rank_ = 0;
  std::deque<uint64_t> marks_;  // of the steps that run
  std::unique_ptr<Model> model_;
  std::vector<std::string> blobs_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
  std::vector<std::vector<PageId>> adapter_pages_;
  std::vector<uint64_t> adapter_bytes_;  // of its rows on this rank
  std::vector<Row> rows_;
  SamplingParams greedy_;
  uint32_t next_page_ = 1;  // page 0 is scratch
  std::mt19937 random_{1};
};

}  // namespace rootstock
