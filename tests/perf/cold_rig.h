// One tp_rank with adapters in its host cache, driven as a group's link drives it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/perf/cold_bench.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

// *One thread.*
class ColdRig {
 public:
  static constexpr int kAdapters = 3;  // the decoding rows run with the first

  static absl::StatusOr<std::unique_ptr<ColdRig>> Create(const ColdBenchOptions& options);

  uint64_t adapter_bytes() const { return layout_->row_bytes(0); }
  // Seconds of one copy of as many bytes from pinned memory.
  absl::StatusOr<double> CopySeconds();
  // The same of its pages in the host cache, those side by side as one piece.
  absl::StatusOr<double> CopyImageSeconds(int adapter);
  // Seconds until an image is in the host cache.
  absl::StatusOr<double> Stage(int adapter);
  // Seconds from the order to the outcome.
  absl::StatusOr<double> Load(int adapter);
  // Of them, in the last Load: until the order had returned.
  double order_seconds() const { return order_seconds_; }
  absl::Status Drop(int adapter);
  // Seconds to the first token of a prompt with the adapter; cold: the load is ordered with it, and
  // has ended when this returns. After a while of rest: the device's clocks depend on what it did
  // before.
  absl::StatusOr<double> FirstToken(int adapter, bool cold);
  // Runs the prompts of the decoding rows, again if they run already.
  absl::Status StartRows();
  // Seconds of each step of the decoding rows, a step enqueued behind the one that runs. loading:
  // the second adapter is loaded and dropped again and again meanwhile, each time from another
  // moment of a step on.
  absl::StatusOr<std::vector<double>> Decode(int steps, bool loading);
  int loads_beside() const { return loads_beside_; }  // that ended in the last Decode
  // How often another thread took the processor from this one in the last Decode.
  int64_t taken_off() const { return taken_off_; }

 private:
  explicit ColdRig(const ColdBenchOptions& options) : options_(options) {}
  absl::Status MakeContents();
  absl::Status MakeModel();
  std::vector<PageId> PagesAt(uint32_t first, uint32_t count) const;
  LoadAdapter LoadOf(int adapter) const;
  absl::StatusOr<CommandId> Begin(decltype(Command::kind) kind);
  absl::Status Run(StepPlan plan);
  absl::StatusOr<double> SecondsOf(std::span<const CopyRun> runs);
  // Starts, settles and drops as what is under way allows.
  absl::Status TurnLoads();

  const ColdBenchOptions options_;
  ModelSpec spec_;
  TpPlan tp_;
  LoraSpec lora_;
  PageGeometry geometry_;
  std::unique_ptr<AdapterLayout> layout_;
  std::map<Digest, std::string> contents_;
  std::vector<Digest> digests_;
  uint32_t pages_of_row_ = 0, pages_of_prompt_ = 0;
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<CopyLane> lane_;
  DeviceBuffer from_, to_;
  std::unique_ptr<WorkerRuntime> runtime_;
  uint64_t commands_ = 0;
  uint32_t position_ = 0;  // of the decoding rows
  std::optional<CommandId> loading_;
  double order_seconds_ = 0;
  int loads_beside_ = 0;
  int64_t taken_off_ = 0;
};

}  // namespace rootstock
