// Prints JSON lines: read bandwidth; each site and whole layers for few rows, ours beside the best
// of cuBLASLt's first eight algorithms; cuBLASLt's rate for many rows. Given numbers of rows:
// those, of the first model alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/linear/cuda_bench.h"
#include "kernels/linear/lt_matmul.h"
#include "kernels/linear/stream_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kLayers = 24;
constexpr int kMaxRows = kMaxStreamRows;
constexpr int kChoices = 8;

class Bench {
 public:
  Bench(LtMatmul* lt, StreamLinear* own) : lt_(lt), own_(own), bandwidth_(ReadBandwidth()) {
    std::printf("{\"read_tb_s\": %.3f}\n", bandwidth_ / 1e12);
  }

  void FewRows(const Model& model, int copies, const std::vector<int>& rows) {
    const Tensors tensors(model, copies, kMaxRows);
    const int sites = static_cast<int>(model.sites.size());
    for (const int m : rows) {
      if (!StreamLinear::Takes(tensors.Args(0, 0, m))) continue;  // of a head alone
      std::vector<int> choices;
      double bytes = 0;
      for (int i = 0; i < sites; ++i) {
        const Best best = BestOfLt(tensors, i, m, kLayers);
        choices.push_back(best.choice);
        const double own = LayersTime([&](int layer, cudaStream_t stream) {
          return own_->Run(tensors.Args(i, layer, m), stream);
        });
        const double site_bytes = 2.0 * model.sites[i].n * model.sites[i].k;
        bytes += site_bytes;
        Print(model.name, model.sites[i].name, m, best.us, own, site_bytes);
      }
      if (sites > 1) Layer(model, tensors, m, choices, bytes);
    }
  }

  void ManyRows(const Model& model) {
    constexpr int kRepeats = 3;
    const Tensors tensors(model, 1, 8192);
    for (int m : {256, 2048, 8192}) {
      for (int i = 0; i < static_cast<int>(model.sites.size()); ++i) {
        const Site& site = model.sites[i];
        const double flops = 2.0 * m * site.n * site.k;
        const double first = GraphTime([&](cudaStream_t stream) {
          std::string error;
          for (int r = 0; r < kRepeats && error.empty(); ++r) {
            error = lt_->Run(tensors.Args(i, 0, m), stream);
          }
          return error;
        });
        const Best best = BestOfLt(tensors, i, m, kRepeats);
        std::printf(
            "{\"model\": \"%s\", \"site\": \"%s\", \"rows\": %d, \"tflops\": %.1f, "
            "\"best_of_8_tflops\": %.1f}\n",
            model.name.c_str(), site.name.c_str(), m, flops * kRepeats / first / 1e6,
            flops / best.us / 1e6);
      }
    }
  }

 private:
  struct Best {
    double us = 1e30;
    int choice = 0;
  };

  // The sites of a layer one after the other, alone and with a small kernel behind each.
  void Layer(const Model& model, const Tensors& tensors, int m, const std::vector<int>& choices,
             double bytes) {
    const int sites = static_cast<int>(model.sites.size());
    const auto time = [&](bool ours, bool between) {
      return LayersTime([&](int layer, cudaStream_t stream) {
        std::string error;
        for (int i = 0; i < sites && error.empty(); ++i) {
          const LinearArgs args = tensors.Args(i, layer, m);
          const LinearArgs next = tensors.Args((i + 1) % sites, layer + (i + 1) / sites, m);
          error = ours ? own_->Run(args, stream) : lt_->Run(args, stream, choices[i]);
          if (error.empty() && between) error = Between(args, next, ours, stream);
        }
        return error;
      });
    };
    Print(model.name, "layer", m, time(false, false), time(true, false), bytes);
    Print(model.name, "layer with small kernels", m, time(false, true), time(true, true), bytes);
  }

  // µs a layer.
  static double LayersTime(const std::function<std::string(int, cudaStream_t)>& layer) {
    return GraphTime([&](cudaStream_t stream) {
             std::string error;
             for (int i = 0; i < kLayers && error.empty(); ++i) error = layer(i, stream);
             return error;
           }) /
           kLayers;
  }

  Best BestOfLt(const Tensors& tensors, int site, int m, int repeats) {
    Best best;
    for (int choice = 0; choice < kChoices; ++choice) {
      if (!lt_->Run(tensors.Args(site, 0, m), nullptr, choice).empty()) break;
      const double us = GraphTime([&](cudaStream_t stream) {
                          std::string error;
                          for (int r = 0; r < repeats && error.empty(); ++r) {
                            error = lt_->Run(tensors.Args(site, r, m), stream, choice);
                          }
                          return error;
                        }) /
                        repeats;
      if (us > 0 && us < best.us) best = {us, choice};
    }
    return best;
  }

  void Print(const std::string& model, const std::string& site, int m, double lt, double own,
             double bytes) const {
    std::printf(
        "{\"model\": \"%s\", \"site\": \"%s\", \"rows\": %d, \"cublaslt_us\": %.2f, \"own_us\": "
        "%.2f, \"ratio\": %.3f, \"floor_us\": %.2f, \"bandwidth_share\": %.3f}\n",
        model.c_str(), site.c_str(), m, lt, own, own / lt, bytes / bandwidth_ * 1e6,
        bytes / bandwidth_ * 1e6 / own);
  }

  LtMatmul* lt_;
  StreamLinear* own_;
  double bandwidth_;  // bytes a second
};

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  using namespace rootstock::kernels::cuda;
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  const std::unique_ptr<StreamLinear> own = StreamLinear::Create(&error);
  if (lt == nullptr || own == nullptr) {
    std::fprintf(stderr, "needs an sm_90 GPU: %s\n", error.c_str());
    return 1;
  }
  Bench bench(lt.get(), own.get());
  std::vector<int> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::clamp(std::atoi(argv[i]), 1, kMaxRows));
  for (const Model& model : Models()) {
    double bytes = 0;
    for (const Site& site : model.sites) bytes += 2.0 * site.n * site.k;
    // Several times the second cache lie between two uses of a copy.
    const int copies = std::clamp(static_cast<int>(2.5e9 / bytes), 2, 12);
    if (!rows.empty()) {
      bench.FewRows(model, copies, rows);
      return 0;
    }
    bench.FewRows(model, copies, {1, 8, 16, 32, 64, 80, 96});
  }
  for (const Model& model : Models()) {
    if (model.sites.size() == 4 && model.name != "70B/TP8") bench.ManyRows(model);
  }
  return 0;
}
