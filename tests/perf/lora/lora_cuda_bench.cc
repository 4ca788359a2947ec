// Times the four sites of a layer with and without LoRA, as graphs over rotating weights.
// kernels_lora_cuda_bench [decode | prefill | all [site] | goals [commit]] [--shape 8B|13B]: a JSON
// line a case, µs.
//   gemm, consumer: the base site's parts; consumer_lora, shrink: what LoRA runs, each alone;
//   base: the site; beside, inline: the site with LoRA, its shrink on a second stream beside the
//   GEMM or before the GEMM on the same one (above 256 tokens measured in turn with base); marg:
//   the better of them - base; floor: the adapters' bytes at the read bandwidth,
//   measured first; bound: of marg, 1.35 floors and 1.5 graph nodes (4 above 64 rows); peer: marg
//   of the best other engine, 0 where not known.
// goals: prefill alone, as entries of docs/benchmarks: what LoRA adds to the four sites over the
// time of their GEMMs.
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/perf/gpu_ceilings.h"
#include "tests/perf/lora/lora_bench_site.h"

namespace rootstock::kernels::cuda {
namespace {

// µs that LoRA adds with the best other engine, measured on an H200: docs of the goals, 8B.
struct Peer {
  const char* site;
  int tokens, adapters, lora_rank;
  double marg;
};
constexpr Peer kPeers[] = {{"qkv", 64, 64, 16, 17.8},     {"qkv", 64, 8, 16, 6.7},
                           {"qkv", 1, 1, 16, 4.4},        {"o", 64, 64, 16, 14.6},
                           {"gate_up", 64, 64, 16, 30.8}, {"gate_up", 256, 1, 16, 20.2},
                           {"down", 64, 8, 16, 6.8}};

// 0: not measured.
double PeerMarg(const std::string& site, int tokens, int adapters, int lora_rank) {
  for (const Peer& p : kPeers) {
    if (site == p.site && tokens == p.tokens && adapters == p.adapters &&
        lora_rank == p.lora_rank) {
      return p.marg;
    }
  }
  return 0;
}

constexpr size_t kSlabBytes = size_t{4} << 30;

struct Bench {
  SiteShape shape;
  Ceilings ceilings;
  Linear* linear;
  const std::byte* slab;
};

// Second stream and events of a fork. *One thread.*
struct Fork {
  cudaStream_t main, side;
  cudaEvent_t begin, end;
  Fork() {
    cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
  }
};

// Median µs of a layer of a graph of what `enqueue` puts on a stream for `layers` layers.
double Time(const Fork& fork, int layers, const std::function<void(int)>& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(fork.main, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < layers; ++i) enqueue(i);
  cudaStreamEndCapture(fork.main, &graph);
  if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
    std::fprintf(stderr, "no graph: %s\n", cudaGetErrorString(cudaGetLastError()));
    return NAN;
  }
  constexpr int kReplays = 15;
  cudaEvent_t at[kReplays + 1];
  for (cudaEvent_t& event : at) cudaEventCreate(&event);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, fork.main);
  for (int i = 0; i <= kReplays; ++i) {
    cudaEventRecord(at[i], fork.main);
    if (i < kReplays) cudaGraphLaunch(exec, fork.main);
  }
  if (cudaStreamSynchronize(fork.main) != cudaSuccess) {
    std::fprintf(stderr, "failed: %s\n", cudaGetErrorString(cudaGetLastError()));
  }
  std::vector<float> times(kReplays);
  for (int i = 0; i < kReplays; ++i) cudaEventElapsedTime(&times[i], at[i], at[i + 1]);
  for (cudaEvent_t event : at) cudaEventDestroy(event);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[kReplays / 2] * 1000.0 / layers;
}

struct BaseTimes {
  double gemm, consumer, site;
};

void Base(const Fork& fork, BenchSite& site, int layer) {
  if (site.is_long()) return site.Run(layer, {}, {}, fork.main);
  site.Gemm(layer, fork.main);
  site.Consume({}, {}, fork.main);
}

// Medians of three rounds of both, one after the other.
std::pair<double, double> TimeInTurn(const Fork& fork, int layers,
                                     const std::function<void(int)>& first,
                                     const std::function<void(int)>& second) {
  std::array<double, 3> times[2];
  for (size_t i = 0; i < times[0].size(); ++i) {
    times[0][i] = Time(fork, layers, first);
    times[1][i] = Time(fork, layers, second);
  }
  for (auto& of : times) std::sort(of.begin(), of.end());
  return {times[0][1], times[1][1]};
}

BaseTimes TimeBase(const Fork& fork, BenchSite& site, int layers) {
  for (int i = 0; i < layers; ++i) {
    const std::string error = site.Gemm(i, fork.main);  // a shape's first run is not captured
    if (!error.empty()) std::fprintf(stderr, "%s\n", error.c_str());
  }
  cudaStreamSynchronize(fork.main);
  const auto gemm = [&](int i) { site.Gemm(i, fork.main); };
  const auto consume = [&](int) { site.Consume({}, {}, fork.main); };
  BaseTimes out;
  out.gemm = Time(fork, layers, gemm);
  out.consumer = Time(fork, layers, consume);
  out.site = Time(fork, layers, [&](int i) { Base(fork, site, i); });
  return out;
}

// Returns what LoRA adds, µs.
double RunCase(const Bench& bench, const Fork& fork, BenchSite& site, const BaseTimes& base,
               const char* name, int layers, int tokens, int adapters, int lora_rank, FILE* out) {
  const BenchLora lora(bench.slab, kSlabBytes, site.targets(), layers, lora_rank, tokens, adapters);
  const LoraStep& step = lora.step();
  const auto shrink = [&](int i) { site.Shrink(step, lora.targets(i), fork.main); };
  const auto consume = [&](int i) { site.Consume(step, lora.targets(i), fork.main); };
  const double shrink_us = Time(fork, layers, shrink);
  const double consumer_us = Time(fork, layers, consume);
  const auto with_lora = [&](int i) {
    if (site.is_long()) return site.Run(i, step, lora.targets(i), fork.main);
    shrink(i);
    site.Gemm(i, fork.main);
    consume(i);
  };
  // A GPU at its power cap slows down from case to case: long steps have their base beside them.
  const bool decode = tokens <= kDecodeTokens;
  const auto [base_us, inline_us] =
      decode ? std::pair(base.site, Time(fork, layers, with_lora))
             : TimeInTurn(fork, layers, [&](int i) { Base(fork, site, i); }, with_lora);
  const double beside_us = !decode ? inline_us : Time(fork, layers, [&](int i) {
    cudaEventRecord(fork.begin, fork.main);
    cudaStreamWaitEvent(fork.side, fork.begin);
    site.Shrink(step, lora.targets(i), fork.side);
    cudaEventRecord(fork.end, fork.side);
    site.Gemm(i, fork.main);
    cudaStreamWaitEvent(fork.main, fork.end);
    consume(i);
  });
  double bytes = 0;
  for (int t = 0; t < site.targets().count; ++t) {
    bytes += 2.0 * adapters * lora_rank * (site.targets().in + site.targets().features[t]);
  }
  const double floor = bytes / bench.ceilings.read_bytes_per_us;
  const double nodes = tokens <= 64 ? 1.5 : 4;
  const double marg = std::min(beside_us, inline_us) - base_us;
  std::fprintf(
      out,
      "{\"case\": \"%s T=%d A=%d r=%d\", \"gemm\": %.2f, \"consumer\": %.2f, \"consumer_lora\": "
      "%.2f, \"shrink\": %.2f, \"base\": %.2f, \"beside\": %.2f, \"inline\": %.2f, \"marg\": %.2f, "
      "\"floor\": %.2f, \"bound\": %.2f, \"peer\": %.2f}\n",
      name, tokens, adapters, lora_rank, base.gemm, base.consumer, consumer_us, shrink_us, base_us,
      beside_us, inline_us, marg, floor, 1.35 * floor + nodes * 0.95,
      std::string(bench.shape.name) == k8B.name ? PeerMarg(name, tokens, adapters, lora_rank) : 0);
  std::fflush(out);
  return marg;
}

constexpr int kGoalRanks[] = {16, 64};
constexpr int kGoalAdapters[] = {1, 4, 16};

// Goal 3: its cases go to stderr, its entries to stdout.
void RunGoals(const Bench& bench, const Fork& fork, const char* commit) {
  const char* const shape = bench.shape.name;
  const auto print = [&](const std::string& name, const std::string& fields) {
    std::printf(
        "  {\"case\": \"%s\", %s, \"machine\": \"H200\", \"date\": \"%s\", \"commit\": \"%s\", "
        "\"command\": "
        "\"kernels_lora_cuda_bench goals %s --shape %s\"},\n",
        name.c_str(), fields.c_str(), Today().c_str(), commit, commit, shape);
  };
  const auto ceiling = [&](const char* name, double value, const char* unit) {
    print(name, "\"value\": " + std::to_string(value) + ", \"better\": \"higher\", \"unit\": \"" +
                    unit + "\"");
  };
  ceiling(kReadBandwidthCase, bench.ceilings.read_bytes_per_us / 1e6, "TB/s");
  ceiling(kGemmRateCase, bench.ceilings.flops_per_us / 1e6, "TFLOP/s");
  for (const int tokens : {2048, 8192}) {
    double gemms = 0;
    double marg[std::size(kGoalAdapters)][std::size(kGoalRanks)] = {};
    for (int s = 0; s < 4; ++s) {
      constexpr int kLayers = 2;
      BenchSite site(bench.shape, static_cast<SiteKind>(s), tokens, kLayers, bench.linear);
      const BaseTimes base = TimeBase(fork, site, kLayers);
      gemms += base.gemm;
      for (size_t a = 0; a < std::size(kGoalAdapters); ++a) {
        for (size_t r = 0; r < std::size(kGoalRanks); ++r) {
          marg[a][r] += RunCase(bench, fork, site, base, kSiteNames[s], kLayers, tokens,
                                kGoalAdapters[a], kGoalRanks[r], stderr);
        }
      }
    }
    for (size_t a = 0; a < std::size(kGoalAdapters); ++a) {
      for (size_t r = 0; r < std::size(kGoalRanks); ++r) {
        char name[64], fields[160];
        std::snprintf(name, sizeof name, "%s prefill T=%d A=%d r=%d", shape, tokens,
                      kGoalAdapters[a], kGoalRanks[r]);
        std::snprintf(fields, sizeof fields,
                      "\"goal\": 3, \"value\": %.4f, \"bound\": %g, \"better\": \"lower\", "
                      "\"unit\": \"share of the layer's GEMMs\"",
                      marg[a][r] / gemms, kGoalRanks[r] == 16 ? 0.05 : 0.08);
        print(name, fields);
      }
    }
  }
}

void RunCases(const Bench& bench, const Fork& fork, const std::string& what,
              const std::string& only) {
  const bool decode = what != "prefill";
  const bool prefill = what != "decode";
  for (const int tokens : {1, 16, 64, 256, 2048, 8192}) {
    if (tokens <= 256 ? !decode : !prefill) continue;
    for (int s = 0; s < 4; ++s) {
      if (!only.empty() && only != kSiteNames[s]) continue;
      const int layers = tokens <= 256 ? 8 : 2;
      BenchSite site(bench.shape, static_cast<SiteKind>(s), tokens, layers, bench.linear);
      const BaseTimes base = TimeBase(fork, site, layers);
      for (const int adapters : {1, 8, 16, 32, 64}) {
        if (adapters > tokens) continue;
        if (tokens <= 256 ? adapters == 16 : adapters != 1 && adapters != 16) continue;
        for (const int lora_rank : {8, 16, 64}) {
          RunCase(bench, fork, site, base, kSiteNames[s], layers, tokens, adapters, lora_rank,
                  stdout);
        }
      }
    }
  }
}

int Main(const std::string& what, const std::string& only, const SiteShape& shape) {
  Ceilings ceilings;
  std::string error = MeasureCeilings(0, &ceilings);
  const std::unique_ptr<Linear> linear = error.empty() ? MakeLinear(&error) : nullptr;
  if (linear == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  const Fork fork;
  const auto slab = RandomBf16(kSlabBytes / 2, 0.02f);
  const Bench bench{shape, ceilings, linear.get(), slab->get()};
  if (what == "goals") {
    RunGoals(bench, fork, only.c_str());
  } else {
    RunCases(bench, fork, what, only);
  }
  return 0;
}

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const auto shape = rootstock::kernels::cuda::TakeShape(args);
  if (!shape.has_value()) {
    std::fprintf(stderr, "--shape: 8B or 13B\n");
    return 2;
  }
  args.resize(2);
  return rootstock::kernels::cuda::Main(args[0].empty() ? "all" : args[0], args[1], *shape);
}
