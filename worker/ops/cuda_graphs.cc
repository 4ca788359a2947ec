// CudaOps: what it takes before the first step, and the graphs of decode steps.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/ops/cuda_ops.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

// Adapters of the smaller graphs: smaller grids, and kernels for rows that share adapters, which
// half as many adapters as rows do.
constexpr int kFewGroups = 8;
std::vector<int> GraphGroups(int rows) {
  std::vector<int> out = {rows};
  if (rows > 2 * kFewGroups) out.insert(out.begin(), rows / 2);
  if (rows > kFewGroups) out.insert(out.begin(), kFewGroups);
  return out;
}

constexpr int kMaxGraphRows = cuda::kDecodeTokens;
// What a token's fully sharded adapter may have on average; more runs without a graph.
constexpr int kGraphLoraRank = 64;

// Rows of the graphs, close together where a pad costs most; the last is `most`, if graphs go so
// far.
std::vector<int> GraphRows(int most) {
  most = std::min(most, kMaxGraphRows);
  std::vector<int> out;
  for (int rows = 1; rows < most; rows += rows < 8 ? rows : rows < 128 ? 8 : 32)
    out.push_back(rows);
  out.push_back(most);
  return out;
}

// Most adapters leave the MLP alone: half of the sites then.
constexpr uint32_t kAttentionModules =
    ModuleBit(Module::kQ) | ModuleBit(Module::kK) | ModuleBit(Module::kV) | ModuleBit(Module::kO);

// Of the graphs, ascending by rows; for each number of rows one without LoRA, then those with it,
// of fewer modules first.
std::vector<StepSizes> GraphSizes(const OpsLimits& limits) {
  std::vector<StepSizes> out;
  for (const int n :
       GraphRows(std::min({limits.max_rows, limits.max_tokens, limits.max_outputs}))) {
    out.push_back({n, n, n, 0, 0, 0});
    for (const uint32_t modules : {kAttentionModules, kEveryModule}) {
      for (const int groups : GraphGroups(n)) out.push_back({n, n, n, groups, n, 0, modules});
    }
    if (limits.tp_size == 1) continue;
    const int exchange = n * ((kGraphLoraRank + limits.tp_size - 1) / limits.tp_size);
    out.push_back({n, n, n, n, n, exchange});
  }
  return out;
}

}  // namespace

void CudaOps::DropGraphs() {
  for (Graph& graph : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  graphs_.clear();
}

absl::Status CudaOps::Prepare(const OpsLimits& limits) {
  DropGraphs();
  limits_ = limits;
  StepCapacity capacity;
  capacity.sizes.tokens = limits.max_tokens;
  capacity.sizes.rows = limits.max_rows;
  capacity.sizes.outputs = limits.max_outputs;
  capacity.sizes.groups = MaxLoraGroups(limits.max_rows);
  static_assert(kMaxStackedAdapters * cuda::kDecodeTokens <= cuda::kDecodeMembers);
  capacity.sizes.members =
      std::max(cuda::kDecodeMembers, kMaxStackedAdapters * capacity.sizes.tokens);
  capacity.tp_size = limits.tp_size;
  if (limits.tp_size > 1) {
    capacity.sizes.exchange =
        capacity.sizes.members * ((cuda::kMaxLoraRank + limits.tp_size - 1) / limits.tp_size);
    const size_t floats = size_t{cuda::kMaxLoraTargets} * limits.tp_size * capacity.sizes.exchange;
    ASSIGN_OR_RETURN(lora_exchange_,
                     device_.Allocate(sizeof(float) * floats, "LoRA activations of all ranks"));
  }
  const int pages = limits.max_positions / static_cast<int>(memory_.page_tokens) + 1;
  capacity.pages = limits.max_rows * pages;
  ASSIGN_OR_RETURN(step_, CudaStep::Create(device_, capacity));
  ASSIGN_OR_RETURN(lora_v_, device_.Allocate(sizeof(float) * cuda::VFloats(capacity.sizes.members,
                                                                           limits.max_in),
                                             "LoRA activations"));
  cuda::AttentionShapes shapes;
  shapes.type = type_;
  shapes.heads = {limits.attention.num_heads, limits.attention.num_kv_heads,
                  limits.attention.head_dim};
  shapes.page_tokens = static_cast<int>(memory_.page_tokens);
  shapes.page_bytes = memory_.page_bytes;
  shapes.max_rows = capacity.sizes.rows;
  shapes.max_tokens = capacity.sizes.tokens;
  shapes.max_pages = capacity.pages;
  std::string error;
  attention_ = cuda::MakePagedAttention(shapes, &error);
  if (attention_ == nullptr) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "attention", "cuda",
                     error);
  }
  return absl::OkStatus();
}

// A graph's memory does not depend on its rows: a rehearsal records those of the most alone.
absl::Status CudaOps::Record(const std::function<absl::Status()>& forward) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<StepSizes> all = GraphSizes(limits_);
  for (const StepSizes& sizes : all) RETURN_IF_ERROR(RunPads(sizes, forward));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(device_.stream()), "graphs"));
  ASSIGN_OR_RETURN(const uint64_t before, device_.FreeBytes());
  for (const StepSizes& sizes : all) {
    if (!limits_.rehearsal || sizes.rows == all.back().rows)
      RETURN_IF_ERROR(Record(sizes, forward));
  }
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(device_.stream()), "graphs"));
  ASSIGN_OR_RETURN(const uint64_t after, device_.FreeBytes());
  graph_bytes_ = (before - std::min(before, after)) / graphs_.size() * all.size();
  if (limits_.rehearsal) {
    DropGraphs();
    return absl::OkStatus();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  LogInfo("graphs: ", graphs_.size(), " of ", graph_bytes_ >> 20, " MiB for up to ",
          all.back().rows, " rows in ", seconds, " s");
  return absl::OkStatus();
}

// Steps with prompts use other kernels: they are loaded before the first one comes.
absl::Status CudaOps::WarmUp(const std::function<absl::Status()>& forward) {
  const int tokens = std::min(limits_.max_tokens, limits_.max_positions);
  const std::vector<int32_t> ids(tokens, 0);
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<uint32_t> scratch(tokens / memory_.page_tokens + 1, 0);
  const SequenceView row{0, tokens, 0, scratch};
  const int32_t last = tokens - 1;
  RETURN_IF_ERROR(BeginStep({ids, positions, {&row, 1}, {}, {&last, 1}}));
  RETURN_IF_ERROR(Run(forward));
  RETURN_IF_ERROR(EndStep().status());
  return CudaStatus(cudaStreamSynchronize(device_.stream()), "warm-up");
}

absl::Status CudaOps::BeginPads(const StepSizes& sizes) {
  every_token_has_output_ = true;
  RETURN_IF_ERROR(step_->Fill({}, sizes, memory_.page_tokens));
  return Enter(sizes, /*max_q_len=*/1);
}

absl::Status CudaOps::RunPads(const StepSizes& sizes,
                              const std::function<absl::Status()>& forward) {
  RETURN_IF_ERROR(BeginPads(sizes));
  RETURN_IF_ERROR(forward());
  return EndStep().status();
}

absl::Status CudaOps::Record(const StepSizes& sizes, const std::function<absl::Status()>& forward) {
  RETURN_IF_ERROR(BeginPads(sizes));
  const cudaStream_t stream = device_.stream();
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graphs"));
  const absl::Status recorded = forward();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  RETURN_IF_ERROR(recorded);
  RETURN_IF_ERROR(EndStep().status());
  RETURN_IF_ERROR(CudaStatus(ended, "graphs"));
  Graph out{sizes, nullptr};
  const cudaError_t made = cudaGraphInstantiate(&out.exec, graph, 0);
  cudaGraphDestroy(graph);
  RETURN_IF_ERROR(CudaStatus(made, "graphs"));
  graphs_.push_back(out);
  return CudaStatus(cudaGraphUpload(out.exec, stream), "graphs");
}

bool CudaOps::IsDecode(const StepView& step, const StepSizes& exact) {
  if (exact.tokens != exact.rows || exact.outputs != exact.rows) return false;
  for (int i = 0; i < exact.rows; ++i) {
    if (step.output_tokens[i] != i) return false;
  }
  return true;
}

const CudaOps::Graph* CudaOps::FindGraph(const StepSizes& exact) const {
  for (const Graph& graph : graphs_) {
    if (graph.sizes.rows < exact.rows || (graph.sizes.groups > 0) != (exact.groups > 0)) continue;
    if ((graph.sizes.exchange > 0) != (exact.exchange > 0)) continue;
    if ((graph.sizes.modules & exact.modules) != exact.modules) continue;
    if (graph.sizes.groups >= exact.groups && graph.sizes.members >= exact.members &&
        (graph.sizes.exchange >= exact.exchange || ExchangesItself(graph.sizes))) {
      return &graph;
    }
  }
  return nullptr;
}

}  // namespace rootstock
