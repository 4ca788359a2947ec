// Times of paged attention, as JSON (docs/benchmarks). KV is read from 32 layers in turn, which is
// more than the L2 cache holds. Decode is measured alone and between the kernels that a decode step
// has beside it: what it adds to them.
#include <cuda_runtime.h>

#include <algorithm>
#include <ctime>

#include "kernels/attention/attention_bench_step.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kSmallPoolGb = 16, kLargePoolGb = 110;
constexpr double kPoolBound = 1.03;

// What a layer of the graph holds.
enum class Layer { kAttention, kNeighbours, kAll };

// Median over replays of a graph of all layers.
double MicrosecondsALayer(PagedAttention& attention, const BenchStep& step, Neighbours* neighbours,
                          Layer layer) {
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  Check(attention.Plan(step.batch, stream));
  Check(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int l = 0; l < kBenchLayers; ++l) {
    if (layer != Layer::kAttention) neighbours->Before(l, stream);
    if (layer != Layer::kNeighbours) {
      Check(attention.Run(step.LayerKv(l), step.qkv, step.out, stream));
    }
    if (layer != Layer::kAttention) neighbours->After(l, stream);
  }
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(exec, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  Check(cudaGraphExecDestroy(exec));
  Check(cudaGraphDestroy(graph));
  Check(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1000.0 / kBenchLayers;
}

// A JSON list on stdout. One thread.
class Report {
 public:
  explicit Report(std::string command, std::string commit)
      : command_(std::move(command)), commit_(std::move(commit)) {
    cudaDeviceProp device;
    Check(cudaGetDeviceProperties(&device, 0));
    machine_ = device.name;
    const std::time_t now = std::time(nullptr);
    std::strftime(date_, sizeof date_, "%Y-%m-%d", std::gmtime(&now));
  }
  ~Report() { std::printf("%s\n]\n", first_ ? "[" : ""); }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // bound 0: none.
  void Add(const std::string& name, double value, const char* better, const char* unit,
           double bound = 0) {
    std::printf("%s\n {\"case\": \"%s\", \"value\": %.3f, ", first_ ? "[" : ",", name.c_str(),
                value);
    if (bound > 0) std::printf("\"goal\": \"decode attention\", \"bound\": %g, ", bound);
    std::printf(
        "\"better\": \"%s\", \"unit\": \"%s\", \"machine\": \"%s\", \"date\": \"%s\", "
        "\"commit\": \"%s\", \"command\": \"%s\"}",
        better, unit, machine_.c_str(), date_, commit_.c_str(), command_.c_str());
    std::fflush(stdout);
    first_ = false;
  }

 private:
  std::string command_, commit_, machine_;
  char date_[16] = "";
  bool first_ = true;
};

std::string NameOf(const Measured& m) {
  std::string name = std::string(m.name) + " heads=" + std::to_string(m.heads.num_heads) + "/" +
                     std::to_string(m.heads.num_kv_heads) + "x" + std::to_string(m.heads.head_dim) +
                     " rows=" + std::to_string(m.rows) + " context=" + std::to_string(m.kv_len);
  if (m.page_tokens != 16) name += " page=" + std::to_string(m.page_tokens);
  if (m.pool_gb != 0) name += " pool=" + std::to_string(m.pool_gb) + " GB";
  return name;
}

std::unique_ptr<PagedAttention> MakeFor(const BenchStep& step) {
  std::string error;
  auto attention = MakePagedAttention(step.shapes, &error);
  Check(error);
  return attention;
}

void Measure(const Measured& m, const Pool& pool, Report& report) {
  const BenchStep step(m, pool);
  const auto attention = MakeFor(step);
  const double us = MicrosecondsALayer(*attention, step, nullptr, Layer::kAttention);
  if (m.q_len > 1) {
    return report.Add(NameOf(m), step.Flops(m) / us * 1e-6, "higher", "TFLOP/s");
  }
  report.Add(NameOf(m) + " alone", us, "lower", "us");
  Neighbours neighbours(step);
  const double all = MicrosecondsALayer(*attention, step, &neighbours, Layer::kAll);
  const double others = MicrosecondsALayer(*attention, step, &neighbours, Layer::kNeighbours);
  report.Add(NameOf(m) + " in a step", all - others, "lower", "us", m.bound_us);
}

// Pages anywhere in a large pool against a small one.
void MeasurePools(const Measured& m, const Pool& pool, Report& report) {
  double us[2] = {};
  for (int i = 0; i < 2; ++i) {
    Measured of = m;
    of.pool_gb = i == 0 ? kSmallPoolGb : kLargePoolGb;
    const BenchStep step(of, pool);
    us[i] = MicrosecondsALayer(*MakeFor(step), step, nullptr, Layer::kAttention);
    report.Add(NameOf(of), us[i], "lower", "us");
  }
  report.Add(NameOf(m) + " 110 GB / 16 GB", us[1] / us[0], "lower", "ratio", kPoolBound);
}

struct Case {
  Measured measured;
  void (*measure)(const Measured& m, const Pool& pool, Report& report) = Measure;
};

std::vector<Case> Cases() {
  const HeadShape k8B = {32, 8, 128}, k13B = {40, 40, 128}, kSmall = {32, 8, 64};
  std::vector<Case> cases = {{{.name = "decode", .heads = k8B, .rows = 1, .bound_us = 6}},
                             {{.name = "decode", .heads = k8B, .rows = 16, .bound_us = 19}},
                             {{.name = "decode", .heads = k8B, .rows = 64, .bound_us = 67}}};
  const auto add = [&](Measured m) { cases.push_back({m}); };
  for (int rows : {4, 32, 256}) add({.name = "decode", .heads = k8B, .rows = rows});
  for (int rows : {1, 16, 64}) add({.name = "decode", .heads = k8B, .rows = rows, .kv_len = 1030});
  for (int rows : {1, 64}) add({.name = "decode", .heads = k8B, .rows = rows, .page_tokens = 32});
  for (int rows : {16, 64}) {
    add({.name = "decode ragged", .heads = k8B, .rows = rows, .ragged = true});
  }
  for (int rows : {1, 16}) add({.name = "decode", .heads = k8B, .rows = rows, .kv_len = 16384});
  for (int rows : {1, 16, 64}) add({.name = "decode", .heads = k13B, .rows = rows});
  for (int rows : {1, 16, 64}) add({.name = "decode", .heads = kSmall, .rows = rows});
  for (const HeadShape& heads : {k8B, kSmall}) {
    for (int kv_len : {2048, 8192}) {
      add({.name = "prefill", .heads = heads, .rows = 1, .q_len = 2048, .kv_len = kv_len});
    }
  }
  add({.name = "prefill 16 prompts", .heads = k8B, .rows = 16, .q_len = 1024});
  cases.push_back({{.name = "pool", .heads = k8B, .rows = 64}, MeasurePools});
  cases.push_back({{.name = "pool", .heads = k8B, .rows = 256, .kv_len = 480}, MeasurePools});
  return cases;
}

int Run(int argc, char** argv) {
  std::string command = "kernels_attention_cuda_bench", commit = "unknown", only;
  for (int i = 1; i < argc; ++i) {
    command += std::string(" ") + argv[i];
    if (std::string(argv[i]) == "--commit" && i + 1 < argc) {
      commit = argv[++i];
    } else {
      only = argv[i];
    }
  }
  size_t free = 0, all = 0;
  Check(cudaMemGetInfo(&free, &all));
  const size_t others = size_t{8} << 30;
  if (free < 2 * others) Check(std::string("too little memory"));
  const Pool pool(free - others);
  Report report(command, commit);
  for (const Case& c : Cases()) {
    if (std::string(c.measured.name).find(only) != std::string::npos) {
      c.measure(c.measured, pool, report);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rootstock::kernels::cuda

// [--commit COMMIT] [NAME]: only cases whose name holds it.
int main(int argc, char** argv) { return rootstock::kernels::cuda::Run(argc, argv); }
