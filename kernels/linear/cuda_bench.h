// What the bench of the linear layers measures with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/linear/cuda_test_data.h"
#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

// Bytes a second of a plain kernel that reads 4 GiB.
double ReadBandwidth();

// Time of what `enqueue` puts on a stream, as a graph: the median of replays, µs. Negative and a
// message on stderr when it fails (`enqueue` returns an error).
double GraphTime(const std::function<std::string(cudaStream_t)>& enqueue);

// A small kernel as they lie between a layer's GEMMs: a block for each row reads `from.out` and
// writes `to.x` (from.n ≥ to.k). dependent: as a dependent launch that lets the next one start.
std::string Between(const LinearArgs& from, const LinearArgs& to, bool dependent,
                    cudaStream_t stream);

struct Site {
  std::string name;
  int n = 0;
  int k = 0;
};

struct Model {
  std::string name;
  std::vector<Site> sites;  // of a layer, in order
};

const std::vector<Model>& Models();

// Weights of a model's sites, several copies so that none stays in the second cache, and inputs and
// outputs for max_m rows.
class Tensors {
 public:
  Tensors(const Model& model, int copies, int max_m);

  // Of copy `layer` modulo the copies.
  LinearArgs Args(int site, int layer, int m) const;

 private:
  struct OfSite {
    std::vector<std::unique_ptr<Buffer>> w;
    std::unique_ptr<Buffer> x, out;
  };

  const Model& model_;
  std::vector<OfSite> sites_;
};

}  // namespace rootstock::kernels::cuda
