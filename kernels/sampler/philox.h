// Philox4x32-10: a counter-based generator (Salmon et al., SC 2011), so that a draw depends on its
// key and counter alone, never on what was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace rootstock::kernels {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter c, PhiloxKey k) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier0 * c[0];
    const uint64_t b = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k = {k[0] + kWeyl0, k[1] + kWeyl1};
  }
  return c;
}

// What a number is drawn for; draws of different purposes at one position are independent.
enum class DrawPurpose : uint32_t { kToken = 0 };

// Uniform in [0, 1), 53 bits, keyed as PROTOCOL §4 says.
constexpr double Uniform(uint64_t seed, uint32_t sample_index, uint32_t position,
                         DrawPurpose purpose) {
  const PhiloxCounter r =
      Philox4x32({position, sample_index, static_cast<uint32_t>(purpose), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((static_cast<uint64_t>(r[1]) << 32 | r[0]) >> 11) * 0x1p-53;
}

}  // namespace rootstock::kernels
