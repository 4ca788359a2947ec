// Models of two layers with random weights, and random adapters of them, for tests at real shapes.
#pragma once

#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "tests/parity/test_group.h"

namespace rootstock {

struct RandomShape {
  const char* name;
  int hidden, ffn, heads, kv_heads;
};

inline void PrintTo(const RandomShape& shape, std::ostream* out) { *out << shape.name; }

// Two layers.
inline std::string ConfigOf(const RandomShape& s) {
  return absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,)",
      R"("hidden_size": )", s.hidden, R"(, "intermediate_size": )", s.ffn,
      R"(, "num_attention_heads": )", s.heads, R"(, "num_key_value_heads": )", s.kv_heads,
      R"(, "head_dim": 128, "vocab_size": 8192, "max_position_embeddings": 2048,)",
      R"("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,)",
      R"("hidden_act": "silu", "torch_dtype": "bfloat16"})");
}

inline std::vector<uint8_t> Noise(size_t count, float spread, std::mt19937& random) {
  std::vector<uint8_t> out(2 * count);
  for (size_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f;
    const uint16_t half = FloatToBF16(spread * unit);
    std::memcpy(&out[2 * i], &half, sizeof(half));
  }
  return out;
}

// Of all projections.
inline std::string RandomAdapter(const ModelSpec& model, int lora_rank, uint32_t seed,
                                 float spread) {
  std::mt19937 random(seed);
  LoraSpec lora;
  std::vector<LoraWeights> weights;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const Module module : kAllModules) {
      lora.modules.push_back({layer, module, lora_rank, 0.5f});
      LoraWeights& w = weights.emplace_back();
      w.a_dtype = w.b_dtype = DType::kBF16;
      w.a = Noise(size_t{1} * lora_rank * model.in_features(module), spread, random);
      w.b = Noise(size_t{1} * lora_rank * model.out_features(module), spread, random);
    }
  }
  return EncodeCanonical(lora, weights, model);
}

}  // namespace rootstock
