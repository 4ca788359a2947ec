// adapter_config.json as PEFT writes it, checked field by field.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

constexpr size_t kMaxPeftConfigBytes = 64 << 10;
constexpr char kPeftConfigFile[] = "adapter_config.json";

// What the honoured fields say. Defaults are PEFT's.
struct PeftConfig {
  int r = 8;
  double lora_alpha = 8.0;
  bool use_rslora = false;
  // In the file's order: the first that matches counts.
  std::vector<std::pair<std::string, int>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  bool all_linear = false;
  bool targets_are_regex = false;
  std::vector<std::string> target_modules;  // names, or one regex
  bool excludes_are_regex = false;
  std::vector<std::string> exclude_modules;
  std::vector<int> layers_to_transform;  // empty: all
  std::vector<std::string> layers_pattern;

  std::string base_model_name;               // base_model_name_or_path
  std::vector<std::string> harmless_fields;  // that were there and change nothing
};

// kInvalidArgument: the reason of peft_fields.h's table, config_invalid or duplicate.
absl::StatusOr<PeftConfig> ParsePeftConfig(const std::string& text);

}  // namespace rootstock
