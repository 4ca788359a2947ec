// One flag's texts into its target, with the table's checks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/flags/flags.h"

namespace rootstock {

// `texts` has one element except for list flags. Error: INVALID_ARGUMENT naming flag and value.
absl::Status SetFlag(const FlagSpec& flag, const std::vector<std::string>& texts);

bool IsList(const FlagSpec& flag);
bool IsBool(const FlagSpec& flag);

// The help page: usage, one line a flag with its default; ≤ 100 columns.
std::string HelpText(const ProgramInfo& program, const std::vector<FlagSpec>& table);

}  // namespace rootstock
