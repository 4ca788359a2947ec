// One flag's texts into its target, with the table's checks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/flags/flags.h"

namespace rootstock {

// `texts` has one element except for list flags. Error: INVALID_ARGUMENT naming flag and value.
absl::Status SetFlag(const FlagSpec& flag, const std::vector<std::string>& texts);

bool IsList(const FlagSpec& flag);
bool IsBool(const FlagSpec& flag);

// What stands for the value in help: "FILE"; empty for switches.
std::string FlagPlaceholder(const FlagSpec& flag);

using HelpLines = std::vector<std::pair<std::string, std::string>>;
// The help page: title, the given lines, one line a flag with its default; ≤ 100 columns.
std::string HelpText(const std::string& title, HelpLines lines, const std::vector<FlagSpec>& table);

}  // namespace rootstock
