// SHA-256 digests: the identity of adapters and models.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace rootstock {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  friend auto operator<=>(const Digest&, const Digest&) = default;
  std::string Hex() const;    // 64 lower-case digits
  std::string Short() const;  // first 12 digits, for logs
  static std::optional<Digest> FromHex(const std::string& hex);

  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.bytes);
  }
};

// Incremental SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  void Update(std::span<const uint8_t> bytes);
  void Update(const std::string& bytes);
  Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest Sha256Of(const std::string& bytes);

}  // namespace rootstock

template <>
struct std::hash<rootstock::Digest> {
  size_t operator()(const rootstock::Digest& d) const;
};
