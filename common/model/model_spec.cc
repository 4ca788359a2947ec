#include "common/model/model_spec.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/model/config_fields.h"
#include "common/model/json_fields.h"
#include "common/model/model_files.h"
#include "common/model/rope.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocab = 1 << 24;

struct ArchitectureRow {
  Architecture architecture;
  const char* name;
  const char* model_type;
};
constexpr std::array<ArchitectureRow, 4> kArchitectures = {{
    {Architecture::kLlama, "LlamaForCausalLM", "llama"},
    {Architecture::kMistral, "MistralForCausalLM", "mistral"},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
}};

constexpr std::array<const char*, 7> kModuleNames = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                     "gate_proj", "up_proj", "down_proj"};

absl::StatusOr<Architecture> ParseArchitecture(const JsonFields& f) {
  const Json* list = f.Find("architectures");
  const Json* type = f.Find("model_type");
  if (list == nullptr && type == nullptr) {
    return InvalidField(Reason::kModelInvalid, "architectures", "", "is required");
  }
  if (list != nullptr && (!list->is_array() || list->size() != 1)) {
    return JsonFields::Unsupported("architectures", *list, "one architecture is expected");
  }
  for (const ArchitectureRow& row : kArchitectures) {
    if (list != nullptr ? (*list)[0] == row.name : *type == row.model_type) {
      if (type != nullptr && *type != row.model_type) {
        return JsonFields::Unsupported("model_type", *type,
                                       absl::StrCat("does not belong to ", row.name));
      }
      return row.architecture;
    }
  }
  return JsonFields::Unsupported(
      list != nullptr ? "architectures" : "model_type", list != nullptr ? *list : *type,
      "served are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
      "Qwen3ForCausalLM");
}

absl::Status ParseHeads(const JsonFields& f, ModelSpec& out) {
  ASSIGN_OR_RETURN(out.num_heads, f.RequiredInt("num_attention_heads", 1, 4096));
  ASSIGN_OR_RETURN(const auto kv, f.Int("num_key_value_heads", 1, 4096));
  if (!kv && out.architecture != Architecture::kLlama) {
    // Each of the other architectures has another default: don't guess.
    return InvalidField(Reason::kModelInvalid, "num_key_value_heads", "", "is required");
  }
  out.num_kv_heads = kv.value_or(out.num_heads);
  if (out.num_heads % out.num_kv_heads != 0) {
    return InvalidField(Reason::kModelInvalid, "num_key_value_heads",
                        absl::StrCat(out.num_kv_heads),
                        absl::StrCat("does not divide num_attention_heads ", out.num_heads));
  }
  ASSIGN_OR_RETURN(const auto head_dim, f.Int("head_dim", 2, 1024));
  if (!head_dim && out.architecture != Architecture::kQwen3 &&
      out.hidden_size % out.num_heads != 0) {
    return InvalidField(Reason::kModelInvalid, "hidden_size", absl::StrCat(out.hidden_size),
                        absl::StrCat("is no multiple of num_attention_heads ", out.num_heads));
  }
  // transformers' Qwen3Config has 128 where the others derive it.
  const int derived =
      out.architecture == Architecture::kQwen3 ? 128 : out.hidden_size / out.num_heads;
  out.head_dim = head_dim.value_or(derived);
  if (out.head_dim % 2 != 0 || out.head_dim > 1024) {
    return InvalidField(Reason::kModelInvalid, "head_dim", absl::StrCat(out.head_dim),
                        "must be even, at most 1024");
  }
  return absl::OkStatus();
}

// Refuses a window that some position would feel.
absl::Status CheckSlidingWindow(const JsonFields& f, const ModelSpec& spec, bool window_given) {
  if (const Json* types = f.Find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != static_cast<size_t>(spec.num_layers)) {
      return JsonFields::Bad("layer_types", *types, "must have one entry a layer");
    }
    for (const Json& t : *types) {
      if (t != "full_attention") return JsonFields::Unsupported("layer_types", t, "not served");
    }
  }
  ASSIGN_OR_RETURN(auto window, f.Int("sliding_window", 0, INT32_MAX));
  ASSIGN_OR_RETURN(const auto use, f.Bool("use_sliding_window"));
  ASSIGN_OR_RETURN(const auto from_layer, f.Int("max_window_layers", 0, INT32_MAX));
  const bool qwen =
      spec.architecture == Architecture::kQwen2 || spec.architecture == Architecture::kQwen3;
  if (qwen && (!use.value_or(false) || (from_layer && *from_layer >= spec.num_layers))) {
    return absl::OkStatus();
  }
  // transformers' MistralConfig has a window of 4096 unless the file says null.
  if (!window_given && spec.architecture == Architecture::kMistral) window = 4096;
  if (!window && qwen) window = 4096;
  if (!window || *window >= spec.max_position) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnimplemented, Reason::kUnsupportedModel, "sliding_window",
      absl::StrCat(*window),
      absl::StrCat("attention windows are not served; positions go to ", spec.max_position));
}

absl::Status ParseSizes(const JsonFields& f, ModelSpec& out) {
  ASSIGN_OR_RETURN(out.num_layers, f.RequiredInt("num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(out.hidden_size, f.RequiredInt("hidden_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(out.ffn_size, f.RequiredInt("intermediate_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(out.vocab_size, f.RequiredInt("vocab_size", 1, kMaxVocab));
  ASSIGN_OR_RETURN(out.max_position, f.RequiredInt("max_position_embeddings", 1, 1 << 30));
  ASSIGN_OR_RETURN(const auto eps, f.Number("rms_norm_eps", 0.0, 1.0));
  out.rms_norm_eps = static_cast<float>(eps.value_or(1e-6));
  ASSIGN_OR_RETURN(const auto tie, f.Bool("tie_word_embeddings"));
  out.tie_word_embeddings = tie.value_or(false);
  return absl::OkStatus();
}

}  // namespace

const char* ArchitectureName(Architecture a) { return kArchitectures[static_cast<size_t>(a)].name; }

const char* ModuleName(Module m) { return kModuleNames[static_cast<size_t>(m)]; }

std::optional<Module> ModuleFromName(const std::string& name) {
  for (const Module m : kAllModules) {
    if (name == ModuleName(m)) return m;
  }
  return std::nullopt;
}

std::string ModulePath(int layer, Module m) {
  const bool mlp = m == Module::kGate || m == Module::kUp || m == Module::kDown;
  return absl::StrCat("model.layers.", layer, mlp ? ".mlp." : ".self_attn.", ModuleName(m));
}

int ModelSpec::in_features(Module m) const {
  if (m == Module::kO) return num_heads * head_dim;
  return m == Module::kDown ? ffn_size : hidden_size;
}

int ModelSpec::out_features(Module m) const {
  switch (m) {
    case Module::kQ:
      return num_heads * head_dim;
    case Module::kK:
    case Module::kV:
      return num_kv_heads * head_dim;
    case Module::kGate:
    case Module::kUp:
      return ffn_size;
    case Module::kO:
    case Module::kDown:
      return hidden_size;
  }
  return 0;
}

absl::StatusOr<ModelSpec> ParseModelSpec(const std::string& config_json) {
  StrictJsonLimits limits;
  limits.invalid = limits.duplicate = Reason::kModelInvalid;
  ASSIGN_OR_RETURN(const Json config, ParseStrictJson(config_json, "config.json", limits));
  if (!config.is_object()) {
    return InvalidField(Reason::kModelInvalid, "config.json", "", "must be an object");
  }
  const JsonFields f(config);
  ModelSpec out;
  ASSIGN_OR_RETURN(out.architecture, ParseArchitecture(f));
  RETURN_IF_ERROR(CheckConfigFields(config));
  if (const Json* act = f.Find("hidden_act"); act != nullptr && *act != "silu") {
    return JsonFields::Unsupported("hidden_act", *act, "served is silu");
  }
  RETURN_IF_ERROR(ParseSizes(f, out));
  RETURN_IF_ERROR(ParseHeads(f, out));
  RETURN_IF_ERROR(CheckSlidingWindow(f, out, config.contains("sliding_window")));
  ASSIGN_OR_RETURN(out.rope, ParseRope(config));
  ASSIGN_OR_RETURN(out.eos_token_ids, ParseEosTokenIds(config, out.vocab_size));
  out.qkv_bias = out.architecture == Architecture::kQwen2;
  out.qk_norm = out.architecture == Architecture::kQwen3;
  return out;
}

absl::StatusOr<ModelSpec> LoadModelSpec(const std::filesystem::path& model_dir) {
  ASSIGN_OR_RETURN(const auto text, ReadModelFile(model_dir / "config.json"));
  if (!text) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kModelInvalid, "model",
                     model_dir.string(), "has no config.json");
  }
  return ParseModelSpec(*text);
}

}  // namespace rootstock
