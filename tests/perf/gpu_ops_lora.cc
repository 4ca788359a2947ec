// The four sites of an 8B layer with and without LoRA. Beside other engines: kernels/lora's bench.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/perf/gpu_ops_parts.h"
#include "tests/perf/gpu_ops_unfused.h"
#include "tests/perf/lora/lora_bench_site.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr size_t kSlabBytes = size_t{4} << 30;
constexpr int kLoraRanks[] = {8, 16, 64};

struct LoraCase {
  int tokens = 0;
  int adapters = 0;
  int lora_rank = 0;
};

std::string NameOf(const std::string& site, const LoraCase& c) {
  return absl::StrCat(site, " T=", c.tokens, " A=", c.adapters, " r=", c.lora_rank);
}

// One site at one number of tokens. *One thread.*
class SiteBench {
 public:
  SiteBench(const Ceilings& ceilings, cuda::SiteKind kind, int tokens, int layers,
            cuda::Linear& linear, const std::byte* slab)
      : ceilings_(ceilings),
        name_(cuda::kSiteNames[static_cast<int>(kind)]),
        tokens_(tokens),
        layers_(layers),
        slab_(slab),
        site_(cuda::k8B, kind, tokens, layers, &linear),
        base_us_(MicrosecondsEach(layers,
                                  [&](int layer, cudaStream_t s) {
                                    site_.Run(layer, {}, {}, s);
                                    return std::string();
                                  })),
        apart_us_(MicrosecondsEach(layers,
                                   [&](int layer, cudaStream_t s) {
                                     const std::string error = site_.Gemm(layer, s);
                                     site_.Consume({}, {}, s);
                                     return error;
                                   })),
        gemm_us_(MicrosecondsEach(
            layers, [&](int layer, cudaStream_t s) { return site_.Gemm(layer, s); })) {}

  const std::string& name() const { return name_; }
  // The site without LoRA as a step runs it.
  double base_us() const { return base_us_; }
  double gemm_us() const { return gemm_us_; }

  // µs that LoRA adds.
  double Marg(const LoraCase& c) {
    const cuda::BenchLora lora(slab_, kSlabBytes, site_.targets(), layers_, c.lora_rank, tokens_,
                               c.adapters);
    return MicrosecondsEach(layers_,
                            [&](int layer, cudaStream_t s) {
                              site_.Run(layer, lora.step(), lora.targets(layer), s);
                              return std::string();
                            }) -
           base_us_;
  }

  // The same by cuBLASLt, over all adapters, over the GEMM and its consumer one after the other.
  double UnfusedMarg(const LoraCase& c, cuda::LtMatmul& lt) {
    UnfusedLora unfused(site_.targets(), tokens_, c.adapters, c.lora_rank, slab_, kSlabBytes, &lt);
    return MicrosecondsEach(layers_,
                            [&](int layer, cudaStream_t s) {
                              std::string error = site_.Gemm(layer, s);
                              if (error.empty()) error = unfused.Run(layer, s);
                              site_.Consume({}, {}, s);
                              return error;
                            }) -
           apart_us_;
  }

  // µs to read the distinct adapters.
  double Floor(const LoraCase& c) const {
    double bytes = 0;
    const cuda::LoraTargets& targets = site_.targets();
    for (int t = 0; t < targets.count; ++t) {
      bytes += 2.0 * c.adapters * c.lora_rank * (targets.in + targets.features[t]);
    }
    return bytes / ceilings_.read_bytes_per_us;
  }

 private:
  const Ceilings& ceilings_;
  const std::string name_;
  const int tokens_, layers_;
  const std::byte* const slab_;
  cuda::BenchSite site_;
  const double base_us_, apart_us_, gemm_us_;
};

void AddDecodeCase(SiteBench& bench, const LoraCase& c, cuda::LtMatmul& lt,
                   std::vector<BenchResult>& results) {
  const std::string name = NameOf(bench.name(), c);
  const double marg = bench.Marg(c), floor = bench.Floor(c);
  const double nodes = c.tokens <= 64 ? 1.5 : 4;
  results.push_back(
      {"2", name + ", LoRA adds", marg, 1.35 * floor + nodes * kGraphNodeUs, "lower", "us"});
  results.push_back({"", name + ", byte floor", floor, 0, "lower", "us"});
  const double unfused = bench.UnfusedMarg(c, lt);
  results.push_back({"", name + ", cuBLAS unfused adds", unfused, 0, "lower", "us"});
  results.push_back({"", name + ", over cuBLAS unfused", marg / unfused, 1, "lower", "ratio"});
}

// Sums over the sites of a layer, by case.
struct LayerSums {
  double gemm = 0, marg = 0, unfused = 0;
};

void AddLayer(const LoraCase& c, const LayerSums& sums, std::vector<BenchResult>& results) {
  const std::string name = NameOf("layer", c);
  const double bound = c.lora_rank <= 16 ? 0.05 : 0.08;
  results.push_back(
      {"3", name + ", LoRA over the projections", sums.marg / sums.gemm, bound, "lower", "ratio"});
  results.push_back({"", name + ", cuBLAS unfused over the projections", sums.unfused / sums.gemm,
                     0, "lower", "ratio"});
}

}  // namespace

void BenchLoraSites(const Ceilings& ceilings, cuda::Linear& linear, bool prefill,
                    std::vector<BenchResult>& results) {
  std::string error;
  const std::unique_ptr<cuda::LtMatmul> lt = cuda::LtMatmul::Create(&error);
  if (lt == nullptr) return;  // RunOpsBench has made one
  const auto slab = cuda::RandomBf16(kSlabBytes / 2, 0.02f);
  const std::vector<int> tokens =
      prefill ? std::vector<int>{2048, 8192} : std::vector<int>{1, 16, 64, 256};
  const std::vector<int> adapters =
      prefill ? std::vector<int>{1, 16} : std::vector<int>{1, 8, 32, 64};
  for (const int t : tokens) {
    std::map<std::pair<int, int>, LayerSums> layers;
    for (int s = 0; s < 4; ++s) {
      SiteBench bench(ceilings, static_cast<cuda::SiteKind>(s), t, prefill ? 2 : 8, linear,
                      slab->get());
      results.push_back({"", absl::StrCat(bench.name(), " T=", t, ", base site"), bench.base_us(),
                         0, "lower", "us"});
      for (const int a : adapters) {
        for (const int r : kLoraRanks) {
          const LoraCase c{t, a, r};
          if (a > t) continue;
          if (!prefill) {
            AddDecodeCase(bench, c, *lt, results);
            continue;
          }
          LayerSums& sums = layers[{a, r}];
          sums.gemm += bench.gemm_us();
          sums.marg += bench.Marg(c);
          sums.unfused += bench.UnfusedMarg(c, *lt);
        }
      }
    }
    for (const auto& [key, sums] : layers) AddLayer({t, key.first, key.second}, sums, results);
  }
}

}  // namespace rootstock
