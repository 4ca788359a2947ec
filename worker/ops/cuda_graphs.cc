// CudaOps: what it takes before the first step, and the graphs of decode steps.
#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/ops/cuda_ops.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr int kMaxGraphRows = cuda::kDecodeTokens;

// Rows of the graphs: close together where a pad costs most.
std::vector<int> GraphRows(int max_rows) {
  std::vector<int> out;
  for (int rows = 1; rows < 8; rows *= 2) out.push_back(rows);
  for (int rows = 8; rows < 128; rows += 8) out.push_back(rows);
  for (int rows = 128; rows <= kMaxGraphRows; rows += 32) out.push_back(rows);
  const auto first_enough = std::lower_bound(out.begin(), out.end(), max_rows);
  if (first_enough != out.end()) out.erase(first_enough + 1, out.end());
  return out;
}

}  // namespace

void CudaOps::DropGraphs() {
  for (Graph& graph : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  graphs_.clear();
}

absl::Status CudaOps::Prepare(const OpsLimits& limits,
                              const std::function<absl::Status()>& forward) {
  DropGraphs();
  limits_ = limits;
  const std::vector<int> graph_rows = GraphRows(limits.max_rows);
  const int rows = std::max(limits.max_rows, graph_rows.back());
  StepCapacity capacity;
  capacity.sizes.tokens = std::max(limits.max_tokens, rows);
  capacity.sizes.rows = rows;
  capacity.sizes.outputs = std::max(limits.max_outputs, rows);
  capacity.sizes.groups = std::max(rows, cuda::kDecodeTokens);
  capacity.sizes.members = std::max(cuda::kDecodeMembers, 2 * capacity.sizes.tokens);
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
  const auto start = std::chrono::steady_clock::now();
  for (const bool lora : {false, true}) {
    for (const int n : graph_rows) RETURN_IF_ERROR(Record(n, lora, forward));
  }
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(device_.stream()), "graphs"));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  LogInfo("graphs: ", graphs_.size(), " for up to ", graph_rows.back(), " rows in ", seconds, " s");
  return absl::OkStatus();
}

// A step of pads alone runs once as it is, so that libraries and kernels are set up, then is
// recorded.
absl::Status CudaOps::Record(int rows, bool lora, const std::function<absl::Status()>& forward) {
  StepSizes sizes{rows, rows, rows, 0, 0};
  if (lora) {
    sizes.groups = rows;
    sizes.members = rows;
  }
  every_token_has_output_ = true;
  RETURN_IF_ERROR(step_->Fill({}, sizes, memory_.page_tokens));
  RETURN_IF_ERROR(Enter(sizes, /*max_q_len=*/1, limits_.max_positions));
  RETURN_IF_ERROR(forward());
  RETURN_IF_ERROR(EndStep().status());
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
    if (graph.sizes.groups >= exact.groups && graph.sizes.members >= exact.members) return &graph;
  }
  return nullptr;
}

}  // namespace rootstock
