#include "kernels/linear/linear.h"

#include "kernels/linear/linear_simd.h"

namespace rootstock::kernels {
namespace {

// Share of `thread` of n items in whole units.
int Cut(int n, int unit, int thread, int threads) {
  const int64_t units = (n + unit - 1) / unit;
  const int64_t at = units * thread / threads * unit;
  return at < n ? static_cast<int>(at) : n;
}

}  // namespace

void LinearDot(const LinearArgs& args, int threads) {
  const auto range = ROOTSTOCK_PICK(LinearDotRange);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    range(args, Cut(args.n, 24, t, threads), Cut(args.n, 24, t + 1, threads));
  }
}

void LinearPacked(const LinearArgs& args, float* packed, int threads) {
  const auto pack = ROOTSTOCK_PICK(PackRange);
  const auto range = ROOTSTOCK_PICK(LinearPackedRange);
#pragma omp parallel num_threads(threads)
  {
    // Both loops have one iteration a thread; between them lies the barrier that `range` needs.
#pragma omp for schedule(static, 1)
    for (int t = 0; t < threads; ++t) {
      pack(args, Cut(args.k, 16, t, threads), Cut(args.k, 16, t + 1, threads), packed);
    }
#pragma omp for schedule(static, 1)
    for (int t = 0; t < threads; ++t) {
      range(args, packed, Cut(args.n, 24, t, threads), Cut(args.n, 24, t + 1, threads));
    }
  }
}

void WidenBf16(const uint16_t* in, size_t n, float* out, int threads) {
  const auto range = ROOTSTOCK_PICK(WidenRange);
  const size_t part = (n / threads + 64) / 64 * 64;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    const size_t begin = t * part < n ? t * part : n;
    const size_t end = begin + part < n ? begin + part : n;
    range(in + begin, end - begin, out + begin);
  }
}

}  // namespace rootstock::kernels
