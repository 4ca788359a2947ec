// Searches the algorithms of lt_table.cc: for each projection of some models and each range of
// rows, the heuristic's answers and their neighbours, timed back to back on random data (so at the
// clocks that a GPU kept busy has) with weights that rotate. Prints a JSON line a shape and, as
// "entry …", the table's lines where the best beats the heuristic's first.
// kernels_linear_lt_search [model]
#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "kernels/linear/cuda_bench.h"
#include "kernels/linear/lt_matmul.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kCopies = 3;
constexpr int kMaxRows = 8192;
constexpr int kMaxCandidates = 160;
constexpr int kFinalists = 8;
constexpr int kRounds = 9;

struct Candidate {
  LtAlgo algo;
  std::vector<double> us;
  double median() {
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
};

class Search {
 public:
  explicit Search(LtMatmul* lt) : lt_(lt) {
    CheckCuda(cudaStreamCreate(&stream_), "stream");
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
  }

  void Shape(const Tensors& tensors, const Model& model, int site, int m) {
    std::vector<Candidate> all = Candidates(tensors.Args(site, 0, m));
    if (all.empty()) {
      std::printf("%s %d: none\n", model.sites[site].name.c_str(), m);
      return;
    }
    for (Candidate& c : all) c.us.push_back(Time(tensors, site, m, c.algo, 1));
    const size_t tried = all.size();
    const double once = all[0].us[0];
    std::stable_sort(all.begin() + 1, all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.us[0] < b.us[0]; });
    all.resize(std::min<size_t>(all.size(), kFinalists));
    const int repeats = std::clamp(static_cast<int>(1500 / once), 2, 12);
    for (Candidate& c : all) c.us.clear();
    Candidate shipped;  // what Linear runs
    for (int round = 0; round < kRounds; ++round) {
      shipped.us.push_back(Time(tensors, site, m, {}, repeats));
      for (Candidate& c : all) c.us.push_back(Time(tensors, site, m, c.algo, repeats));
    }
    const double heuristic = all[0].median();
    std::sort(all.begin(), all.end(),
              [](Candidate& a, Candidate& b) { return a.median() < b.median(); });
    Print(model, site, m, tried, heuristic, shipped.median(), all[0]);
    if (all[0].median() < 0.99 * heuristic) Entry(model.sites[site], m, all[0].algo);
  }

 private:
  // The heuristic's first in front.
  std::vector<Candidate> Candidates(const LinearArgs& args) {
    const std::vector<LtAlgo> answers = lt_->Answers(args);
    std::vector<Candidate> out;
    std::set<LtAlgo> seen;
    const auto add = [&](const LtAlgo& algo) {
      if (out.size() >= kMaxCandidates || !seen.insert(algo).second) return;
      if (lt_->RunAs(args, algo, stream_).empty()) out.push_back({algo, {}});
    };
    for (const LtAlgo& answer : answers) add(answer);
    const size_t bases = std::min<size_t>(answers.size(), 12);
    for (size_t i = 0; i < bases; ++i) {
      for (int swizzle : {0, 1}) {
        for (int cluster : {answers[i].cluster, 2, 3, 5}) {
          for (int custom = 0; custom < 4; ++custom) {
            LtAlgo algo = answers[i];
            algo.swizzle = swizzle;
            algo.cluster = cluster;
            algo.custom = custom == 0 ? algo.custom : custom - 1;
            add(algo);
          }
        }
      }
    }
    CheckCuda(cudaStreamSynchronize(stream_), "candidates");
    return out;
  }

  // µs of a product; algo.id 0: as Linear runs it.
  double Time(const Tensors& tensors, int site, int m, const LtAlgo& algo, int repeats) {
    CheckCuda(cudaEventRecord(begin_, stream_), "record");
    for (int r = 0; r < repeats; ++r) {
      const LinearArgs args = tensors.Args(site, next_++, m);
      const std::string error =
          algo.id == 0 ? lt_->Run(args, stream_) : lt_->RunAs(args, algo, stream_);
      if (!error.empty()) return 1e30;
    }
    CheckCuda(cudaEventRecord(end_, stream_), "record");
    CheckCuda(cudaEventSynchronize(end_), "time");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "time");
    return ms * 1000.0 / repeats;
  }

  static void Print(const Model& model, int site, int m, size_t tried, double heuristic,
                    double shipped, Candidate& best) {
    const Site& s = model.sites[site];
    std::printf(
        "{\"model\": \"%s\", \"site\": \"%s\", \"rows\": %d, \"tried\": %zu, \"heuristic_us\": "
        "%.2f, \"shipped_us\": %.2f, \"best_us\": %.2f, \"ratio\": %.3f, \"tflops\": %.1f}\n",
        model.name.c_str(), s.name.c_str(), m, tried, heuristic, shipped, best.median(),
        best.median() / heuristic, 2.0 * m * s.n * s.k / best.median() / 1e6);
    std::fflush(stdout);
  }

  static void Entry(const Site& s, int m, const LtAlgo& a) {
    std::printf("entry {%d, %d, %d, {%d, %d, %d, %d, %d, %d, %d, %d, %d}},\n", s.n, s.k, m, a.id,
                a.tile, a.stages, a.inner_shape, a.cluster, a.split_k, a.reduction, a.swizzle,
                a.custom);
  }

  LtMatmul* lt_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  int next_ = 0;  // copy of the weights
};

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  using namespace rootstock::kernels::cuda;
  std::string error;
  const std::unique_ptr<LtMatmul> lt = LtMatmul::Create(&error);
  if (lt == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  Search search(lt.get());
  for (const Model& model : Models()) {
    if (model.sites.size() != 4 || (argc > 1 && model.name != argv[1])) continue;
    const Tensors tensors(model, kCopies, kMaxRows);
    for (int m : {2048, 1024, 512, 256, 128, 4096, 8192}) {
      for (int site = 0; site < 4; ++site) search.Shape(tensors, model, site, m);
    }
  }
  return 0;
}
