// The one table of every PEFT LoraConfig field: honoured, harmless, or refused by name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace rootstock {

enum class PeftFieldKind {
  kHonoured,  // read by ParsePeftConfig
  kHarmless,  // changes nothing about what the weights mean
  kRefused,   // refused when set: anything but null, false, empty or one of `allowed`
};

struct PeftField {
  std::string_view name;
  PeftFieldKind kind;
  Reason reason = Reason::kUnsupportedField;  // of a refusal
  const char* text = "";
  std::vector<std::string_view> allowed = {};
};

std::span<const PeftField> PeftFields();

// Refuses the first field that is set and refused, or unknown and not null, false or empty. Names
// of harmless fields that are there go to `harmless`.
absl::Status CheckPeftFields(const nlohmann::ordered_json& config,
                             std::vector<std::string>& harmless);

}  // namespace rootstock
