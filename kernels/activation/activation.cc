#include "kernels/activation/activation.h"

#include <cstddef>
#include <cstring>

#include "kernels/activation/activation_simd.h"

namespace rootstock::kernels {
namespace {

void EmbedRow(const EmbedArgs& args, int token) {
  const size_t n = args.n;
  float* out = args.out + token * n;
  const int64_t row = int64_t{args.ids[token]} - args.first_id;
  if (row < 0 || row >= args.table_rows) {
    std::memset(out, 0, n * sizeof(float));
  } else if (!args.bf16) {
    std::memcpy(out, static_cast<const float*>(args.table) + row * n, n * sizeof(float));
  } else {
    const uint16_t* in = static_cast<const uint16_t*>(args.table) + row * n;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = uint32_t{in[i]} << 16;
      std::memcpy(out + i, &bits, sizeof(bits));
    }
  }
}

}  // namespace

void SiluMul(const float* gate_up, int tokens, int n, float* out, int threads) {
  const auto row = ROOTSTOCK_PICK(SiluMulRow);
#pragma omp parallel for num_threads(threads) schedule(static) if (tokens > 1)
  for (int t = 0; t < tokens; ++t) {
    const float* in = gate_up + size_t{2} * t * n;
    row(in, in + n, n, out + static_cast<size_t>(t) * n);
  }
}

void EmbedRows(const EmbedArgs& args, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (args.tokens > 64)
  for (int t = 0; t < args.tokens; ++t) EmbedRow(args, t);
}

}  // namespace rootstock::kernels
