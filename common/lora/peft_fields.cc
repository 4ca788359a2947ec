#include "common/lora/peft_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace rootstock {
namespace {

using Json = nlohmann::ordered_json;
using Kind = PeftFieldKind;

bool IsEmpty(const Json& v) {
  if (v.is_null()) return true;
  if (v.is_boolean()) return !v.get<bool>();
  if (v.is_string()) return v.get_ref<const std::string&>().empty();
  return v.is_structured() && v.empty();
}

bool IsAllowed(const PeftField& field, const Json& v) {
  if (IsEmpty(v)) return true;
  if (v.is_boolean()) return std::count(field.allowed.begin(), field.allowed.end(), "true") > 0;
  return v.is_string() && std::count(field.allowed.begin(), field.allowed.end(),
                                     v.get_ref<const std::string&>()) > 0;
}

std::string Shown(const Json& v) { return v.is_string() ? v.get<std::string>() : v.dump(); }

}  // namespace

std::span<const PeftField> PeftFields() {
  static const std::vector<PeftField> kFields = {
      {"peft_type", Kind::kRefused, Reason::kPeftType, "served is LORA", {"LORA"}},
      {"r", Kind::kHonoured},
      {"lora_alpha", Kind::kHonoured},
      {"use_rslora", Kind::kHonoured},
      {"rank_pattern", Kind::kHonoured},
      {"alpha_pattern", Kind::kHonoured},
      {"target_modules", Kind::kHonoured},
      {"exclude_modules", Kind::kHonoured},
      {"layers_to_transform", Kind::kHonoured},
      {"layers_pattern", Kind::kHonoured},
      {"fan_in_fan_out", Kind::kHonoured},
      {"base_model_name_or_path", Kind::kHonoured},
      // Training, bookkeeping, and how weights began, where the base stays as it is.
      {"task_type", Kind::kHarmless},
      {"auto_mapping", Kind::kHarmless},
      {"peft_version", Kind::kHarmless},
      {"revision", Kind::kHarmless},
      {"inference_mode", Kind::kHarmless},
      {"lora_dropout", Kind::kHarmless},
      {"eva_config", Kind::kHarmless},
      {"megatron_core", Kind::kHarmless},        // a module name, written always
      {"qalora_group_size", Kind::kHarmless},    // read only with use_qalora
      {"runtime_config", Kind::kHarmless},       // where training keeps its tensors
      {"ensure_weight_tying", Kind::kHarmless},  // about modules whose tensors are refused
      {"merge_weights", Kind::kHarmless},        // of the first PEFT versions
      {"init_lora_weights",
       Kind::kRefused,
       Reason::kUnsupportedField,
       "this initialisation changes the base's weights: convert the adapter to plain LoRA",
       {"true", "gaussian", "orthogonal", "eva"}},
      {"bias", Kind::kRefused, Reason::kBias, "trained biases are not served", {"none"}},
      {"lora_bias", Kind::kRefused, Reason::kBias, "a bias in lora_B is not served"},
      {"use_dora", Kind::kRefused, Reason::kDora, "DoRA is not served"},
      {"modules_to_save", Kind::kRefused, Reason::kModulesToSave,
       "fully trained modules are not served"},
      {"target_parameters", Kind::kRefused, Reason::kUnsupportedField,
       "LoRA on bare parameters is not served"},
      {"trainable_token_indices", Kind::kRefused, Reason::kUnsupportedField,
       "trained token embeddings are not served"},
      {"layer_replication", Kind::kRefused, Reason::kUnsupportedField,
       "replicated layers are not served"},
      {"alora_invocation_tokens", Kind::kRefused, Reason::kUnsupportedField,
       "activated LoRA is not served"},
      {"alora_invocation_string", Kind::kRefused, Reason::kUnsupportedField,
       "activated LoRA is not served"},
      {"use_qalora", Kind::kRefused, Reason::kUnsupportedField, "QA-LoRA is not served"},
      {"use_bdlora", Kind::kRefused, Reason::kUnsupportedField,
       "block-diagonal LoRA is not served"},
      {"loftq_config", Kind::kRefused, Reason::kUnsupportedField,
       "LoftQ changes the base's weights"},
      {"corda_config", Kind::kRefused, Reason::kUnsupportedField,
       "CorDA changes the base's weights"},
      {"lora_ga_config", Kind::kRefused, Reason::kUnsupportedField,
       "LoRA-GA changes the base's weights"},
      {"kasa_config", Kind::kRefused, Reason::kUnsupportedField, "KaSA is not served"},
      {"velora_config", Kind::kRefused, Reason::kUnsupportedField, "VeLoRA is not served"},
      {"monteclora_config", Kind::kRefused, Reason::kUnsupportedField, "MonteCLoRA is not served"},
      {"arrow_config", Kind::kRefused, Reason::kUnsupportedField,
       "routing between adapters is not served"},
      {"megatron_config", Kind::kRefused, Reason::kUnsupportedField,
       "Megatron layers are not served"},
      {"enable_lora", Kind::kRefused, Reason::kUnsupportedField,
       "merged projections of the first PEFT versions are not served"},
  };
  return kFields;
}

absl::Status CheckPeftFields(const Json& config, std::vector<std::string>& harmless) {
  const auto fields = PeftFields();
  // First, because another method's fields mean nothing in this table.
  const auto type = config.find("peft_type");
  if (type == config.end() || *type != "LORA") {
    return InvalidField(Reason::kPeftType, "peft_type", type == config.end() ? "" : Shown(*type),
                        "served is LORA");
  }
  for (const auto& [name, value] : config.items()) {
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const PeftField& f) { return f.name == name; });
    if (field == fields.end()) {
      if (IsEmpty(value)) continue;
      return InvalidField(Reason::kUnknownField, name, Shown(value),
                          "unknown field of adapter_config.json; it might change the mathematics");
    }
    if (field->kind == Kind::kHarmless) harmless.push_back(name);
    if (field->kind == Kind::kRefused && !IsAllowed(*field, value)) {
      return InvalidField(field->reason, name, Shown(value), field->text);
    }
  }
  return absl::OkStatus();
}

}  // namespace rootstock
