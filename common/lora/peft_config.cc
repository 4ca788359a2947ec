#include "common/lora/peft_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/lora/peft_fields.h"

namespace rootstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxKeys = 4096;  // of one object: names of all modules of a large model fit

absl::Status Bad(const std::string& field, const Json& v, const std::string& text) {
  return InvalidField(Reason::kConfigInvalid, field,
                      v.is_string() ? v.get<std::string>() : v.dump(), text);
}

// Nothing when absent or null.
const Json* Find(const Json& config, const char* field) {
  const auto it = config.find(field);
  return it == config.end() || it->is_null() ? nullptr : &*it;
}

absl::Status ReadRank(const std::string& field, const Json& v, int& out) {
  if (v.is_number() && v.get<double>() > std::numeric_limits<int32_t>::max()) {
    return Bad(field, v, "is too large a number");
  }
  if (!v.is_number_integer() || v.get<double>() < 1) {
    return Bad(field, v, "must be a whole number of at least 1");
  }
  out = v.get<int>();
  return absl::OkStatus();
}

absl::Status ReadAlpha(const std::string& field, const Json& v, double& out) {
  if (!v.is_number()) return Bad(field, v, "must be a number");
  // What float32 can't hold would turn the scale into infinity.
  if (std::abs(v.get<double>()) > std::numeric_limits<float>::max()) {
    return Bad(field, v, "is too large a number");
  }
  out = v.get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& config, const char* field, bool& out) {
  const Json* v = Find(config, field);
  if (v == nullptr) return absl::OkStatus();
  if (!v->is_boolean()) return Bad(field, *v, "must be true or false");
  out = v->get<bool>();
  return absl::OkStatus();
}

// A string is one regex, a list is names.
absl::Status ReadNames(const Json& config, const char* field, bool& is_regex,
                       std::vector<std::string>& out) {
  const Json* v = Find(config, field);
  if (v == nullptr) return absl::OkStatus();
  if (v->is_string()) {
    is_regex = true;
    out = {v->get<std::string>()};
    return absl::OkStatus();
  }
  if (!v->is_array()) return Bad(field, *v, "must be a list of names or a regular expression");
  for (const Json& name : *v) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      return Bad(field, *v, "must be a list of names or a regular expression");
    }
    out.push_back(name.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadTargets(const Json& config, PeftConfig& out) {
  RETURN_IF_ERROR(ReadNames(config, "target_modules", out.targets_are_regex, out.target_modules));
  if (Find(config, "target_modules") == nullptr) {
    // PEFT's default for every architecture served.
    out.target_modules = {"q_proj", "v_proj"};
  }
  if (out.targets_are_regex && absl::AsciiStrToLower(out.target_modules[0]) == "all-linear") {
    out.all_linear = true;
  }
  return ReadNames(config, "exclude_modules", out.excludes_are_regex, out.exclude_modules);
}

absl::Status ReadLayers(const Json& config, PeftConfig& out) {
  if (const Json* v = Find(config, "layers_to_transform"); v != nullptr) {
    const Json list = v->is_array() ? *v : Json::array({*v});
    for (const Json& layer : list) {
      if (!layer.is_number_integer() || layer.get<double>() < 0 || layer.get<double>() > 1 << 20) {
        return Bad("layers_to_transform", *v, "must be a layer's number or a list of them");
      }
      out.layers_to_transform.push_back(layer.get<int>());
    }
  }
  bool one = false;
  RETURN_IF_ERROR(ReadNames(config, "layers_pattern", one, out.layers_pattern));
  if (one && out.layers_pattern[0].empty()) out.layers_pattern.clear();
  // As PEFT: it would not load these either.
  if (out.targets_are_regex && !out.layers_to_transform.empty()) {
    return Bad("layers_to_transform", *Find(config, "layers_to_transform"),
               "can't be used when target_modules is a string");
  }
  if (!out.layers_pattern.empty() && out.layers_to_transform.empty()) {
    return Bad("layers_pattern", *Find(config, "layers_pattern"), "needs layers_to_transform");
  }
  return absl::OkStatus();
}

template <typename T, typename Read>
absl::Status ReadPattern(const Json& config, const char* field, Read read,
                         std::vector<std::pair<std::string, T>>& out) {
  const Json* v = Find(config, field);
  if (v == nullptr) return absl::OkStatus();
  if (!v->is_object()) return Bad(field, *v, "must be an object");
  for (const auto& [pattern, value] : v->items()) {
    T number{};
    RETURN_IF_ERROR(read(absl::StrCat(field, "[", pattern, "]"), value, number));
    out.emplace_back(pattern, number);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PeftConfig> ParsePeftConfig(const std::string& text) {
  const StrictJsonLimits limits = {.max_bytes = kMaxPeftConfigBytes, .max_keys = kMaxKeys};
  ASSIGN_OR_RETURN(const Json config, ParseStrictOrderedJson(text, kPeftConfigFile, limits));
  if (!config.is_object()) {
    return InvalidField(Reason::kConfigInvalid, kPeftConfigFile, "", "must be an object");
  }
  PeftConfig out;
  RETURN_IF_ERROR(CheckPeftFields(config, out.harmless_fields));
  if (const auto r = config.find("r"); r != config.end()) {
    RETURN_IF_ERROR(ReadRank("r", *r, out.r));
  }
  if (const auto alpha = config.find("lora_alpha"); alpha != config.end()) {
    RETURN_IF_ERROR(ReadAlpha("lora_alpha", *alpha, out.lora_alpha));
  }
  RETURN_IF_ERROR(ReadBool(config, "use_rslora", out.use_rslora));
  // About Conv1D bases only; PEFT too sets it aside for linear layers, and the files are the same.
  bool fan_in_fan_out = false;
  RETURN_IF_ERROR(ReadBool(config, "fan_in_fan_out", fan_in_fan_out));
  RETURN_IF_ERROR(ReadTargets(config, out));
  RETURN_IF_ERROR(ReadLayers(config, out));
  RETURN_IF_ERROR(ReadPattern(config, "rank_pattern", ReadRank, out.rank_pattern));
  RETURN_IF_ERROR(ReadPattern(config, "alpha_pattern", ReadAlpha, out.alpha_pattern));
  if (const Json* name = Find(config, "base_model_name_or_path"); name != nullptr) {
    if (!name->is_string()) return Bad("base_model_name_or_path", *name, "must be a string");
    out.base_model_name = name->get<std::string>();
  }
  return out;
}

}  // namespace rootstock
