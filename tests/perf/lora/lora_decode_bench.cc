// What LoRA adds to the four sites of a layer in decode steps, as graphs over rotating weights.
// kernels_lora_decode_bench COMMIT [--shape 8B|13B] > docs/benchmarks/gpu-lora-decode.json: goals 1
// and 2. Of each case
//   marg = the site with LoRA - the site without, µs;
//   goal 2: marg; bound: 1.35 × the adapters' bytes at the read bandwidth, measured first, + 1.5
//   graph nodes (4 above 64 rows); goal 1: marg / that of the best other engine, for the cases
//   whose figure is known (of 8B alone); their geometric mean. "layer": the four sites.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/perf/gpu_ceilings.h"
#include "tests/perf/lora/lora_bench_site.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr double kNodeUs = 0.95;
constexpr double kLeastPeerUs = 1.5;  // a best peer under this counts as this
constexpr size_t kSlabBytes = size_t{4} << 30;
constexpr int kLayers = 8;

// µs that LoRA adds with the best other engine, measured on an H200 by their own kernels, 8B.
const std::map<std::string, double> kPeers = {
    {"qkv T=64 A=64 r=16", 17.8},     {"qkv T=64 A=8 r=16", 6.7},
    {"qkv T=1 A=1 r=16", 4.4},        {"o T=64 A=64 r=16", 14.6},
    {"gate_up T=64 A=64 r=16", 30.8}, {"gate_up T=256 A=1 r=16", 20.2},
    {"down T=64 A=8 r=16", 6.8},      {"layer T=1 A=1 r=16", 20.2},
    {"layer T=64 A=8 r=16", 28.8},    {"layer T=64 A=64 r=16", 84.5},
    {"layer T=256 A=8 r=16", 60.4},   {"layer T=64 A=8 r=8", 26.7},
    {"layer T=64 A=64 r=8", 74.2},    {"layer T=64 A=8 r=64", 44.5},
    {"layer T=64 A=64 r=64", 202.2}};

// Median µs of a layer of a graph of what `enqueue` puts on a stream for kLayers layers.
double Time(cudaStream_t stream, const std::function<void(int)>& enqueue) {
  for (int i = 0; i < 2; ++i) enqueue(i);  // a shape's first run is not captured
  cudaStreamSynchronize(stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < kLayers; ++i) enqueue(i);
  cudaStreamEndCapture(stream, &graph);
  if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
    std::fprintf(stderr, "no graph: %s\n", cudaGetErrorString(cudaGetLastError()));
    return NAN;
  }
  constexpr int kReplays = 21;
  cudaEvent_t at[kReplays + 1];
  for (cudaEvent_t& event : at) cudaEventCreate(&event);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, stream);
  for (int i = 0; i <= kReplays; ++i) {
    cudaEventRecord(at[i], stream);
    if (i < kReplays) cudaGraphLaunch(exec, stream);
  }
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    std::fprintf(stderr, "failed: %s\n", cudaGetErrorString(cudaGetLastError()));
  }
  std::vector<float> times(kReplays);
  for (int i = 0; i < kReplays; ++i) cudaEventElapsedTime(&times[i], at[i], at[i + 1]);
  for (cudaEvent_t event : at) cudaEventDestroy(event);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[kReplays / 2] * 1000.0 / kLayers;
}

// The entries, and the mean of goal 1.
class Report {
 public:
  Report(std::string commit, const SiteShape& shape)
      : commit_(std::move(commit)), shape_(shape.name) {}

  void AddCeilings(const Ceilings& ceilings) {
    PrintCeiling(kReadBandwidthCase, ceilings.read_bytes_per_us / 1e6, "TB/s");
    PrintCeiling(kGemmRateCase, ceilings.flops_per_us / 1e6, "TFLOP/s");
  }
  void Add(const std::string& name, double marg, double floor, int tokens) {
    const double nodes = tokens <= 64 ? 1.5 : 4;
    if (name.rfind("layer", 0) != 0) {
      Print(2, name, marg, 1.35 * floor + nodes * kNodeUs, "us");
    }
    const auto peer = kPeers.find(name);
    if (peer == kPeers.end() || shape_ != k8B.name) return;
    const double ratio = marg / std::max(peer->second, kLeastPeerUs);
    Print(1, name, ratio, 1.0, "ratio");
    logs_ += std::log(std::max(ratio, 0.01));
    ++count_;
  }
  void Finish() {
    if (count_ > 0) {
      Print(1, "geometric mean of the cases whose peer is known", std::exp(logs_ / count_), 0.5,
            "ratio");
    }
    std::printf("\n]\n");
  }

 private:
  // `fields`: what stands between case and machine.
  void PrintEntry(const std::string& name, const std::string& fields) {
    const bool first = std::exchange(first_, false);
    std::printf(
        "%s {\"case\": \"%s\", %s, \"machine\": \"H200\", \"date\": \"%s\", \"commit\": \"%s\", "
        "\"command\": "
        "\"kernels_lora_decode_bench %s --shape %s\"}",
        first ? "[\n" : ",\n", name.c_str(), fields.c_str(), Today().c_str(), commit_.c_str(),
        commit_.c_str(), shape_.c_str());
    std::fflush(stdout);
  }
  void Print(int goal, const std::string& name, double value, double bound, const char* unit) {
    char fields[160];
    std::snprintf(fields, sizeof fields,
                  "\"goal\": %d, \"value\": %.3f, \"bound\": %.3f, \"better\": \"lower\", "
                  "\"unit\": \"%s\"",
                  goal, value, bound, unit);
    PrintEntry((shape_ == k8B.name ? "" : shape_ + " ") + name, fields);
  }
  void PrintCeiling(const std::string& name, double value, const char* unit) {
    char fields[160];
    std::snprintf(fields, sizeof fields,
                  "\"value\": %.3f, \"better\": \"higher\", \"unit\": \"%s\"", value, unit);
    PrintEntry(name, fields);
  }

  const std::string commit_, shape_;
  bool first_ = true;
  double logs_ = 0;
  int count_ = 0;
};

struct Bench {
  SiteShape shape;
  Ceilings ceilings;
  cudaStream_t stream;
  Linear* linear;
  const std::byte* slab;
};

void RunTokens(const Bench& bench, int tokens, Report& report) {
  const cudaStream_t stream = bench.stream;
  std::map<std::string, double> layer, layer_floor;
  for (int s = 0; s < 4; ++s) {
    BenchSite site(bench.shape, static_cast<SiteKind>(s), tokens, kLayers, bench.linear);
    const double base = Time(stream, [&](int i) { site.Run(i, {}, {}, stream); });
    for (const int adapters : {1, 8, 32, 64}) {
      if (adapters > tokens) continue;
      for (const int lora_rank : {8, 16, 64}) {
        const BenchLora lora(bench.slab, kSlabBytes, site.targets(), kLayers, lora_rank, tokens,
                             adapters);
        const double with =
            Time(stream, [&](int i) { site.Run(i, lora.step(), lora.targets(i), stream); });
        double bytes = 0;
        for (int t = 0; t < site.targets().count; ++t) {
          bytes += 2.0 * adapters * lora_rank * (site.targets().in + site.targets().features[t]);
        }
        const std::string suffix = " T=" + std::to_string(tokens) +
                                   " A=" + std::to_string(adapters) +
                                   " r=" + std::to_string(lora_rank);
        report.Add(kSiteNames[s] + suffix, with - base, bytes / bench.ceilings.read_bytes_per_us,
                   tokens);
        layer["layer" + suffix] += with - base;
        layer_floor["layer" + suffix] += bytes / bench.ceilings.read_bytes_per_us;
      }
    }
  }
  for (const auto& [name, marg] : layer) report.Add(name, marg, layer_floor[name], tokens);
}

int Main(const std::string& commit, const SiteShape& shape) {
  Ceilings ceilings;
  std::string error = MeasureCeilings(0, &ceilings);
  const std::unique_ptr<Linear> linear = error.empty() ? MakeLinear(&error) : nullptr;
  if (linear == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const auto slab = RandomBf16(kSlabBytes / 2, 0.02f);
  Report report(commit, shape);
  report.AddCeilings(ceilings);
  for (const int tokens : {1, 16, 64, 256}) {
    RunTokens({shape, ceilings, stream, linear.get(), slab->get()}, tokens, report);
  }
  report.Finish();
  return 0;
}

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const auto shape = rootstock::kernels::cuda::TakeShape(args);
  if (!shape.has_value() || args.size() > 1) {
    std::fprintf(stderr, "usage: kernels_lora_decode_bench [COMMIT] [--shape 8B|13B]\n");
    return 2;
  }
  return rootstock::kernels::cuda::Main(args.empty() ? "" : args[0], *shape);
}
