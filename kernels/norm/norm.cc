#include "kernels/norm/norm.h"

#include <cstddef>

#include "kernels/norm/norm_simd.h"

namespace rootstock::kernels {

void AddRmsNorm(const NormArgs& args, int threads) {
  const auto add = ROOTSTOCK_PICK(AddRow);
  const auto norm = ROOTSTOCK_PICK(RmsNormRow);
  const size_t n = args.n;
  const int outputs = args.rows == nullptr ? args.tokens : args.num_rows;
#pragma omp parallel num_threads(threads) if (args.tokens > 1)
  {
    if (args.delta != nullptr) {
#pragma omp for schedule(static)
      for (int t = 0; t < args.tokens; ++t) {
        add(args.residual + t * n, args.delta + t * n, args.n);
      }
    }
#pragma omp for schedule(static)
    for (int i = 0; i < outputs; ++i) {
      const size_t t = args.rows == nullptr ? i : args.rows[i];
      norm(args.residual + t * n, args.weight, args.eps, args.n, args.out + i * n);
    }
  }
}

}  // namespace rootstock::kernels
