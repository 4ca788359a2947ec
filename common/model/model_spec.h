// Shape and mathematics of a base model, read from config.json.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

enum class Architecture { kLlama, kMistral, kQwen2, kQwen3 };
const char* ArchitectureName(Architecture a);  // "LlamaForCausalLM", …

// Linear modules of a decoder layer that adapters may attach to.
enum class Module : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
constexpr std::array<Module, 7> kAllModules = {Module::kQ,    Module::kK,  Module::kV,   Module::kO,
                                               Module::kGate, Module::kUp, Module::kDown};
const char* ModuleName(Module m);  // "q_proj", …
std::optional<Module> ModuleFromName(const std::string& name);
std::string ModulePath(int layer, Module m);  // "model.layers.3.self_attn.q_proj"
// o and down take sharded input; the others produce sharded output (DESIGN §6).
constexpr bool IsRowParallel(Module m) { return m == Module::kO || m == Module::kDown; }

struct RopeSpec {
  enum class Kind { kDefault, kLlama3, kLinear } kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int original_max_position = 0;
};

struct ModelSpec {
  Architecture architecture = Architecture::kLlama;
  int num_layers = 0;
  int hidden_size = 0;
  int ffn_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2
  bool qk_norm = false;   // Qwen3
  RopeSpec rope;
  std::vector<int32_t> eos_token_ids;  // config.json's; generation_config.json's win

  int in_features(Module m) const;
  int out_features(Module m) const;
  // Inverse frequencies of rotary embedding, head_dim / 2 values, scaling applied.
  std::vector<float> RopeInverseFrequencies() const;
};

// Reads DIR/config.json. kUnsupported: architecture or a field that changes the mathematics, by
// name; kInvalidArgument/model_invalid: missing or impossible numbers, by field and value.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::filesystem::path& model_dir);
absl::StatusOr<ModelSpec> ParseModelSpec(const std::string& config_json);

// Default sampling and eos list of generation_config.json; absent file: all absent.
struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<bool> do_sample;
  std::vector<int32_t> eos_token_ids;
};
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir);

}  // namespace rootstock
