#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "worker/weights/weight_source.h"

namespace rootstock {
namespace {

// splitmix64's finaliser: well mixed, a few cycles a number.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A number depends on seed, tensor and index alone, so every tp_size gives the same model.
// *Not thread-safe.*
class DummySource : public WeightSource {
 public:
  DummySource(const ModelSpec& spec, uint64_t seed) : spec_(spec), seed_(seed) {}

  absl::Status Check(const TensorShape&) const override { return absl::OkStatus(); }
  absl::Status CheckNothingLeft(const std::vector<TensorShape>&) const override {
    return absl::OkStatus();
  }
  size_t ElementBytes(const TensorShape&) const override { return DTypeBytes(DType::kBF16); }

  void Prefetch(const TensorShape&, Range, Range) override {}
  void Read(const TensorShape& tensor, Range rows, Range cols, DType to, void* out) override {
    const Digest digest = Sha256Of(tensor.name);
    uint64_t key;
    std::memcpy(&key, digest.bytes.data(), sizeof(key));
    key ^= Mix(seed_);
    const float spread = std::sqrt(3.0f / static_cast<float>(tensor.cols));
#pragma omp parallel for
    for (int r = rows.begin; r < rows.end; ++r) {
      size_t at = static_cast<size_t>(r - rows.begin) * cols.size();
      for (int c = cols.begin; c < cols.end; ++c, ++at) {
        const uint64_t bits = Mix(key + static_cast<uint64_t>(r) * tensor.cols + c);
        const float unit = static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
        // bf16 in any case, so that the storage type changes nothing.
        const uint16_t half = FloatToBF16(tensor.is_norm ? 1.0f : unit * spread);
        if (to == DType::kBF16) {
          static_cast<uint16_t*>(out)[at] = half;
        } else {
          static_cast<float*>(out)[at] = BF16ToFloat(half);
        }
      }
    }
  }

  absl::StatusOr<Digest> Fingerprint() const override {
    return Sha256Of(absl::StrCat("dummy ", seed_, " ", ArchitectureName(spec_.architecture), " ",
                                 spec_.num_layers, " ", spec_.hidden_size, " ", spec_.ffn_size, " ",
                                 spec_.num_heads, " ", spec_.num_kv_heads, " ", spec_.head_dim, " ",
                                 spec_.vocab_size, " ", spec_.tie_word_embeddings, " ",
                                 spec_.rope.theta));
  }

 private:
  const ModelSpec spec_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeDummySource(const ModelSpec& spec, uint64_t seed) {
  return std::make_unique<DummySource>(spec, seed);
}

}  // namespace rootstock
