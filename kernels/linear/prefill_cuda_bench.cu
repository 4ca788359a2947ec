// Prints JSON lines: the matrix products of long steps by our kernel beside cuBLASLt's, alternately
// and each long enough that the GPU's power decides; whole layers with silu(gate) · up.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/cuda_bench.h"
#include "kernels/linear/lt_matmul.h"
#include "kernels/linear/prefill_cuda.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kRounds = 3;
constexpr int kCopies = 3;

using Enqueue = std::function<std::string(int, cudaStream_t)>;
struct Variant {
  std::string name;
  Enqueue enqueue;
};

// Median over rounds of µs a call, of variants in turn; `ms` each.
std::vector<double> Alternate(const std::vector<Variant>& variants, double ms) {
  cudaStream_t stream;
  CheckCuda(cudaStreamCreate(&stream), "stream");
  cudaEvent_t begin, end;
  CheckCuda(cudaEventCreate(&begin), "event");
  CheckCuda(cudaEventCreate(&end), "event");
  const auto time = [&](const Variant& v, int calls) {
    CheckCuda(cudaEventRecord(begin, stream), "record");
    for (int i = 0; i < calls; ++i) {
      const std::string error = v.enqueue(i, stream);
      if (!error.empty()) {
        std::fprintf(stderr, "%s: %s\n", v.name.c_str(), error.c_str());
        std::exit(1);
      }
    }
    CheckCuda(cudaEventRecord(end, stream), "record");
    CheckCuda(cudaEventSynchronize(end), v.name.c_str());
    float elapsed = 0;
    CheckCuda(cudaEventElapsedTime(&elapsed, begin, end), "time");
    return elapsed * 1e3 / calls;
  };
  std::vector<std::vector<double>> times(variants.size());
  std::vector<int> calls;
  for (const Variant& v : variants) {
    time(v, 2);
    calls.push_back(std::max(3, static_cast<int>(ms * 1e3 / time(v, 4))));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < variants.size(); ++i) times[i].push_back(time(variants[i], calls[i]));
  }
  std::vector<double> out;
  for (std::vector<double>& t : times) {
    std::sort(t.begin(), t.end());
    out.push_back(t[t.size() / 2]);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end), cudaStreamDestroy(stream);
  return out;
}

void Print(const std::string& model, const std::string& site, int m, double flops,
           const std::vector<Variant>& variants, const std::vector<double>& us) {
  std::printf("{\"model\": \"%s\", \"site\": \"%s\", \"rows\": %d", model.c_str(), site.c_str(), m);
  for (size_t i = 0; i < us.size(); ++i) {
    std::printf(", \"%s\": [%.1f, %.0f, %.3f]", variants[i].name.c_str(), us[i],
                flops / us[i] / 1e6, us[i] / us[0]);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

SiluMulArgs Silu(const LinearArgs& args, void* out) {
  return {Type::kBF16, args.out, args.n / 2, args.m, out};
}

class Bench {
 public:
  Bench(LtMatmul* lt, PrefillLinear* own) : lt_(lt), own_(own) {}

  void Sites(const Model& model, int m, double ms) {
    const Tensors tensors(model, kCopies, m);
    Buffer gated(size_t{1} * m * 28672);
    const int sites = static_cast<int>(model.sites.size());
    const auto lt = [&](int site) {
      return Variant{"cublaslt", [&, site](int i, cudaStream_t stream) {
                       return lt_->Run(tensors.Args(site, i, m), stream);
                     }};
    };
    const auto own = [&](int site) {
      return Variant{"own", [&, site](int i, cudaStream_t stream) {
                       return own_->Run(tensors.Args(site, i, m), stream);
                     }};
    };
    double all = 0;
    for (int site = 0; site < sites; ++site) {
      const double flops = 2.0 * m * model.sites[site].n * model.sites[site].k;
      all += flops;
      const std::vector<Variant> variants = {lt(site), own(site)};
      Print(model.name, model.sites[site].name, m, flops, variants, Alternate(variants, ms));
    }
    const auto activated = [&](bool ours) {
      return [&, ours](int i, cudaStream_t stream) {
        LinearArgs args = tensors.Args(2, i, m);
        if (ours) {
          args.gated = true;
          args.out = gated.get();
          return own_->Run(args, stream);
        }
        std::string error = lt_->Run(args, stream);
        SiluMul(Silu(args, gated.get()), {}, {}, stream);
        return error;
      };
    };
    const std::vector<Variant> silu = {{"cublaslt", activated(false)}, {"own", activated(true)}};
    Print(model.name, "gate_up silu", m, 2.0 * m * model.sites[2].n * model.sites[2].k, silu,
          Alternate(silu, ms));
    const auto layer = [&](bool ours, bool ours_gated) {
      return [&, ours, ours_gated](int i, cudaStream_t stream) {
        std::string error;
        for (int site = 0; site < sites && error.empty(); ++site) {
          if (site == 2) {
            error = activated(ours_gated)(i, stream);
          } else {
            error = ours ? own_->Run(tensors.Args(site, i, m), stream)
                         : lt_->Run(tensors.Args(site, i, m), stream);
          }
        }
        return error;
      };
    };
    const std::vector<Variant> layers = {{"cublaslt", layer(false, false)},
                                         {"own gate_up", layer(false, true)},
                                         {"own", layer(true, true)}};
    Print(model.name, "layer", m, all, layers, Alternate(layers, 3 * ms));
  }

  // What LoRA inside adds to a layer's products, for prompts side by side.
  void Lora(const Model& model, int m, int rank, int adapters, double ms) {
    const Tensors tensors(model, kCopies, m);
    Buffer gated(size_t{1} * m * 28672);
    std::vector<std::unique_ptr<LoraCase>> cases;
    std::vector<LinearExpand> expands;
    double flops = 0;
    for (int site = 0; site < 4; ++site) {
      const int n = model.sites[site].n, k = model.sites[site].k;
      flops += 2.0 * m * n * k;
      LoraTargets targets{0, site == 0 ? 3 : site == 2 ? 2 : 1};
      targets.in = k;
      const int kv = 1024;
      const int widths[3] = {site == 0 ? n - 2 * kv : n / targets.count,
                             site == 0 ? kv : n / targets.count, kv};
      for (int i = 0, column = 0; i < targets.count; column += widths[i++]) {
        targets.module[i] = i;
        targets.column[i] = column;
        targets.features[i] = widths[i];
      }
      LoraCase& lora = *cases.emplace_back(std::make_unique<LoraCase>(Type::kBF16, m, targets));
      for (int a = 0; a < adapters; ++a) {
        std::vector<int32_t> tokens;
        for (int t = m * a / adapters; t < m * (a + 1) / adapters; ++t) tokens.push_back(t);
        lora.Add({rank, rank, rank}, tokens, a + 1);
      }
      lora.Build();
      expands.push_back({lora.step(), targets});
      LoraShrink(lora.step(), targets, tensors.Args(site, 0, m).x, m, nullptr);
    }
    const auto layer = [&](bool shrink, bool expand, bool beside = false) {
      return [&, shrink, expand, beside](int i, cudaStream_t stream) {
        std::string error;
        for (int site = 0; site < 4 && error.empty(); ++site) {
          LinearArgs args = tensors.Args(site, i, m);
          args.gated = site == 2;
          if (site == 2) args.out = gated.get();
          LinearExpand inside = expands[site];
          if (expand) args.expand = &inside;
          const int sms = beside ? PrefillLinear::SparesSms(args, inside.targets) : 0;
          inside.beside = sms > 0;
          if (sms > 0) {
            LoraShrinkBeside(inside.step, inside.targets, args.x, sms, stream);
          } else if (shrink) {
            LoraShrink(inside.step, inside.targets, args.x, m, stream);
          }
          error = own_->Run(args, stream);
        }
        return error;
      };
    };
    const std::vector<Variant> variants = {
        {"own", layer(false, false)},       {"expands", layer(false, true)},
        {"own", layer(false, false)},       {"expands", layer(false, true)},
        {"and shrinks", layer(true, true)}, {"beside", layer(true, true, true)},
        {"and shrinks", layer(true, true)}, {"beside", layer(true, true, true)}};
    Print(model.name, "layer r" + std::to_string(rank) + " x " + std::to_string(adapters), m, flops,
          variants, Alternate(variants, 2 * ms));
  }

 private:
  LtMatmul* lt_;
  PrefillLinear* own_;
};

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  using namespace rootstock::kernels::cuda;
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  const std::unique_ptr<PrefillLinear> own = PrefillLinear::Create(&error);
  if (lt == nullptr || own == nullptr) {
    std::fprintf(stderr, "needs an sm_90 GPU: %s\n", error.c_str());
    return 1;
  }
  Bench bench(lt.get(), own.get());
  const double ms = argc > 1 ? std::atof(argv[1]) : 100;
  const Model& model = Models()[0];
  const bool lora_alone = argc > 2 && std::strcmp(argv[2], "lora") == 0;
  for (const int m : {1024, 2048, 4096, 8192}) {
    if (!lora_alone) bench.Sites(model, m, ms);
  }
  for (const int rank : {16, 64}) {
    for (const int adapters : {1, 16}) bench.Lora(model, 2048, rank, adapters, ms);
  }
  return 0;
}
