#include "tests/perf/collectives_bench.h"

#include <mpi.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cuda_device.h"
#include "worker/parallel/nccl_communicator.h"
#include "worker/parallel/node.h"

namespace rootstock {
namespace {

constexpr int kCalls = 24;  // of a graph, each on data of its own

// One algorithm for all sizes, or the table that workers use.
struct Contender {
  std::string name;
  std::unique_ptr<Communicator> communicator;
};

// Records kCalls sums of `bytes` and replays them. *One thread.*
class Replay {
 public:
  static absl::StatusOr<std::unique_ptr<Replay>> Record(CudaDevice& device, Communicator& in,
                                                        size_t bytes) {
    std::unique_ptr<Replay> out(new Replay(device));
    const cudaStream_t stream = device.stream();
    for (int i = 0; i < kCalls; ++i) {
      ASSIGN_OR_RETURN(out->data_.emplace_back(), device.Allocate(bytes, "bench"));
    }
    RETURN_IF_ERROR(in.AllReduceSum(out->data_[0].data(), bytes / 2, DType::kBF16));
    RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "bench"));
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "bench"));
    absl::Status status;
    for (const DeviceBuffer& data : out->data_) {
      if (status.ok()) status = in.AllReduceSum(data.data(), bytes / 2, DType::kBF16);
    }
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream, &graph), "bench"));
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&out->graph_, graph, 0), "bench"));
    cudaGraphDestroy(graph);
    RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&out->begin_), "bench"));
    RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&out->end_), "bench"));
    return out;
  }
  ~Replay() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  // Microseconds of a sum. The replay before the timed one brings the ranks together.
  absl::StatusOr<double> Run() {
    const cudaStream_t stream = device_.stream();
    RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(graph_, stream), "bench"));
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin_, stream), "bench"));
    RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(graph_, stream), "bench"));
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end_, stream), "bench"));
    RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end_), "bench"));
    float ms = 0;
    RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, begin_, end_), "bench"));
    return ms * 1e3 / kCalls;
  }

 private:
  explicit Replay(CudaDevice& device) : device_(device) {}
  CudaDevice& device_;
  std::vector<DeviceBuffer> data_;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// By contender, the median of its rounds; the rounds take turns.
absl::StatusOr<std::map<std::string, double>> Measure(CudaDevice& device,
                                                      const std::vector<Contender>& contenders,
                                                      size_t bytes, int rounds) {
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Contender& contender : contenders) {
    ASSIGN_OR_RETURN(replays.emplace_back(),
                     Replay::Record(device, *contender.communicator, bytes));
  }
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t c = 0; c < contenders.size(); ++c) {
      MPI_Barrier(MPI_COMM_WORLD);
      ASSIGN_OR_RETURN(times[c].emplace_back(), replays[c]->Run());
    }
  }
  std::map<std::string, double> out;
  for (size_t c = 0; c < contenders.size(); ++c) {
    out[contenders[c].name] = Quantile(times[c], 0.5);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunCollectivesBench(
    const CollectivesBenchOptions& options) {
  int started = 0;
  MPI_Initialized(&started);
  if (!started) return absl::FailedPreconditionError("collectives: start it with mpirun");
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device,
                   CudaDevice::Create(FindNode().local_rank));
  const uint64_t most = *std::max_element(options.kib.begin(), options.kib.end()) * uint64_t{1024};
  std::vector<Contender> contenders;
  const std::pair<const char*, std::optional<AlgorithmTable>> tables[] = {
      {"NCCL", AlgorithmTable{}},
      {"one-shot", AlgorithmTable{most, most}},
      {"two-shot", AlgorithmTable{0, most}},
      {"chosen", std::nullopt}};
  for (const auto& [name, table] : tables) {
    ASSIGN_OR_RETURN(auto communicator,
                     MakeNcclCommunicator(MPI_COMM_WORLD, *device, {.algorithms = table}));
    contenders.push_back({name, std::move(communicator)});
  }
  const int ranks = contenders[0].communicator->size();
  std::vector<BenchResult> results;
  for (const int32_t kib : options.kib) {
    ASSIGN_OR_RETURN(const auto times,
                     Measure(*device, contenders, kib * size_t{1024}, options.rounds));
    const std::string name = absl::StrCat("all-reduce bf16 ranks=", ranks, " KiB=", kib);
    for (const auto& [contender, us] : times) {
      results.push_back({"", absl::StrCat(name, " ", contender), us, 0, "lower", "us"});
    }
    const double bound = kib <= 512 ? 0.6 : 1.0;
    results.push_back({"11", name + " chosen / NCCL", times.at("chosen") / times.at("NCCL"), bound,
                       "lower", "ratio"});
  }
  if (contenders[0].communicator->rank() != 0) results.clear();
  return results;
}

}  // namespace rootstock
