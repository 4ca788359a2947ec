#include "common/base/digest.h"

#include <openssl/evp.h>

#include <cstring>

namespace rootstock {

struct Sha256::State {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  State() { EVP_DigestInit_ex(ctx, EVP_sha256(), nullptr); }
  ~State() { EVP_MD_CTX_free(ctx); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const uint8_t> bytes) {
  EVP_DigestUpdate(state_->ctx, bytes.data(), bytes.size());
}

void Sha256::Update(const std::string& bytes) {
  EVP_DigestUpdate(state_->ctx, bytes.data(), bytes.size());
}

Digest Sha256::Finish() {
  Digest d;
  unsigned int n = 0;
  EVP_DigestFinal_ex(state_->ctx, d.bytes.data(), &n);
  return d;
}

Digest Sha256Of(const std::string& bytes) {
  Sha256 h;
  h.Update(bytes);
  return h.Finish();
}

std::string Digest::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (const uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

std::string Digest::Short() const { return Hex().substr(0, 12); }

std::optional<Digest> Digest::FromHex(const std::string& hex) {
  if (hex.size() != 64) return std::nullopt;
  Digest d;
  for (size_t i = 0; i < 64; ++i) {
    const char c = hex[i];
    int v = -1;
    if (c >= '0' && c <= '9') v = c - '0';
    if (c >= 'a' && c <= 'f') v = c - 'a' + 10;
    if (v < 0) return std::nullopt;
    d.bytes[i / 2] = static_cast<uint8_t>(d.bytes[i / 2] << 4 | v);
  }
  return d;
}

}  // namespace rootstock

size_t std::hash<rootstock::Digest>::operator()(const rootstock::Digest& d) const {
  size_t h = 0;
  std::memcpy(&h, d.bytes.data(), sizeof h);
  return h;
}
