// One tp_rank with rows and adapters to run steps of, without coordinator and link: alone, or one
// of the processes of mpirun, a GPU each.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "worker/model/model.h"
#include "worker/ops/backend.h"
#include "worker/parallel/communicator.h"

namespace rootstock {

struct StepRigOptions {
  std::string model;  // Hugging Face directory
  bool dummy_weights = false;
  bool cuda = false;  // else the host's processor
  DType dtype = DType::kBF16;
  int32_t threads = 0;                    // 0: the cores this process may use
  std::vector<std::string> adapter_dirs;  // PEFT directories, in turn
  int32_t lora_rank = 0;                  // > 0: random adapters on all seven projections instead
  int32_t adapters = 8;
  int32_t rows = 16;
  int32_t context = 128;  // tokens a row before the first decode step
  int32_t steps = 32;     // decode steps at most after it
};

// Row i runs with adapter i mod the number asked for. Every rank makes the same calls. *One
// thread.*
class StepRig {
 public:
  static absl::StatusOr<std::unique_ptr<StepRig>> Create(const StepRigOptions& options);

  // Seconds to run the prompts of all rows.
  absl::StatusOr<double> Prefill(int adapters);
  // Seconds of each of options.steps greedy decode steps of the first `rows` rows after the
  // prompts, the first left out; a step is enqueued behind the one that runs, as a worker does.
  absl::StatusOr<std::vector<double>> Decode(int rows, int adapters);
  // Seconds a step while nobody waits for a result: what the device alone takes.
  absl::StatusOr<double> DecodeUnwatched(int rows, int adapters);

  int tp_size() const { return tp_.tp_size(); }
  // What a decode step must read on this rank: weights, KV, distinct adapters.
  uint64_t StepBytes(int rows, int adapters) const;

 private:
  struct Row {
    std::vector<uint32_t> pages;
  };

  explicit StepRig(const StepRigOptions& options) : options_(options) {}
  absl::Status SetUp();
  absl::Status MakePages();
  absl::Status LoadWeights();
  absl::Status LoadFiles();
  absl::Status MakeRandomAdapters();
  void AppendRow(int row, int position, int count, int adapters, bool chained, ForwardBatch& batch);
  absl::Status Start(int rows, int adapters, int step);
  // Waits for the oldest step that was started.
  absl::Status Finish();

  const StepRigOptions options_;
  int threads_ = 0;
  uint32_t page_tokens_ = 16;
  ModelSpec spec_;
  TpPlan tp_;
  PageGeometry geometry_;
  Backend backend_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Communicator> communicator_;
  int tp_rank_ = 0;
  std::deque<uint64_t> marks_;  // of the steps that run
  std::unique_ptr<Model> model_;
  std::vector<std::string> blobs_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
  std::vector<Row> rows_;
  SamplingParams greedy_;
  uint32_t next_page_ = 1;  // page 0 is scratch
  std::mt19937 random_{1};
};

}  // namespace rootstock
