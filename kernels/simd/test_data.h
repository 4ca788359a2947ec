// Numbers for kernel tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace rootstock::kernels {

inline std::vector<float> RandomFloats(size_t n, uint32_t seed, float spread = 1.0f) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> pick(-spread, spread);
  std::vector<float> out(n);
  for (float& x : out) x = pick(engine);
  return out;
}

// x cut to bf16; x itself becomes what the cut value stands for.
inline std::vector<uint16_t> CutToBf16(std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x[i], sizeof(bits));
    out[i] = static_cast<uint16_t>(bits >> 16);
    bits &= 0xffff0000u;
    std::memcpy(&x[i], &bits, sizeof(bits));
  }
  return out;
}

}  // namespace rootstock::kernels
