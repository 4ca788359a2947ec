// PROTOCOL §9 (c) asks for one tile and split for each (n, k): the GEMMs of a layer so, beside the
// tiles that are the fastest for each number of rows.
#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/linear/stream_cuda.h"
#include "tests/perf/gpu_ops_parts.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr int kLayers = 24;
constexpr int kRowUnit = 8;
constexpr int kMostTileRows = 248;
constexpr double kCopiesBytes = 2.5e9;  // of weights: none is in the second cache when it is read

using Tiles = std::vector<cuda::StreamTile>;  // of a layer's sites

// Up to two waves, by splits of k.
Tiles Candidates(const cuda::Site& site) {
  std::set<std::pair<int, int>> found;
  for (const int split : {1, 2, 4}) {
    for (const int blocks : {132, 128, 120, 96, 264}) {
      const int tiles = std::max(1, blocks / split);
      const int units = (site.n + tiles * kRowUnit - 1) / (tiles * kRowUnit);
      const int rows = units * kRowUnit;
      if (rows >= 16 && rows <= kMostTileRows) found.insert({rows, split});
    }
  }
  Tiles out;
  for (const auto& [rows, split] : found) out.push_back({rows, split});
  return out;
}

// The GEMMs of one model for some rows, a small kernel behind each as in a step. *One thread.*
class LayerBench {
 public:
  LayerBench(const cuda::Model& model, const cuda::Tensors& tensors,
             const cuda::StreamLinear& linear, int rows)
      : model_(model), tensors_(tensors), linear_(linear), rows_(rows) {}

  Tiles Fixed() const {
    Tiles out;
    for (const cuda::Site& site : model_.sites)
      out.push_back(cuda::StreamTile::For(site.n, site.k));
    return out;
  }
  // One site after the other, in the company of the others.
  Tiles Fastest() const {
    Tiles best = Fixed();
    for (size_t i = 0; i < best.size(); ++i) {
      double least = Time(best);
      for (const cuda::StreamTile& tile : Candidates(model_.sites[i])) {
        Tiles tiles = best;
        tiles[i] = tile;
        const double us = Time(tiles);
        if (us >= least) continue;
        least = us;
        best = tiles;
      }
    }
    return best;
  }
  // µs a layer.
  double Time(const Tiles& tiles) const {
    const int sites = static_cast<int>(tiles.size());
    const int token_rows = rows_ <= 8 ? 8 : rows_ <= 16 ? 16 : rows_ <= 32 ? 32 : 64;
    return MicrosecondsEach(kLayers, [&](int layer, cudaStream_t stream) {
      std::string error;
      for (int i = 0; i < sites && error.empty(); ++i) {
        const cuda::LinearArgs args = tensors_.Args(i, layer, rows_);
        const cuda::LinearArgs next =
            tensors_.Args((i + 1) % sites, layer + (i + 1) / sites, rows_);
        error = linear_.Run(args, tiles[i], cuda::StreamRing().For(tiles[i], args.k, token_rows),
                            stream);
        if (error.empty()) error = cuda::Between(args, next, /*dependent=*/true, stream);
      }
      return error;
    });
  }

 private:
  const cuda::Model& model_;
  const cuda::Tensors& tensors_;
  const cuda::StreamLinear& linear_;
  const int rows_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void BenchEqualBits(std::vector<BenchResult>& results) {
  std::string error;
  const auto linear = cuda::StreamLinear::Create(&error);
  if (linear == nullptr) return;  // before sm_90 other kernels run
  for (const cuda::Model& model : cuda::Models()) {
    if (model.name != "8B" && model.name != "13B") continue;
    double bytes = 0;
    for (const cuda::Site& site : model.sites) bytes += 2.0 * site.n * site.k;
    const cuda::Tensors tensors(model, std::max(2, static_cast<int>(kCopiesBytes / bytes)), 64);
    for (const int rows : {1, 16, 64}) {
      const LayerBench bench(model, tensors, *linear, rows);
      const Tiles fixed = bench.Fixed(), fastest = bench.Fastest();
      std::vector<double> with, without;
      for (int round = 0; round < 5; ++round) {
        with.push_back(bench.Time(fixed));
        without.push_back(bench.Time(fastest));
      }
      std::string tiles;
      for (const cuda::StreamTile& t : fastest) absl::StrAppend(&tiles, " ", t.rows, "x", t.split);
      const std::string name = absl::StrCat("GEMMs of a layer, ", model.name, ", rows=", rows);
      results.push_back({"", name + ", tiles by (n, k)", Median(with), 0, "lower", "us"});
      results.push_back({"", absl::StrCat(name, ", the fastest for these rows:", tiles),
                         Median(without), 0, "lower", "us"});
      results.push_back({"9c", name + ", cost of equal bits", Median(with) / Median(without) - 1, 0,
                         "lower", "ratio"});
    }
  }
}

}  // namespace rootstock
