// Where flags come from: the command line and a config file, as texts by flag.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/flags/flags.h"

namespace rootstock {

using GivenFlags = std::map<std::string, std::vector<std::string>>;  // flag → its texts

struct CommandLine {
  GivenFlags given;
  std::vector<std::string> words;  // what is no flag, in order
  std::string config;
  bool help = false;
  bool version = false;
};

// INVALID_ARGUMENT for unknown flags, flags without value, and for words where none are allowed.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<FlagSpec>& table, bool words_allowed,
                                            int argc, const char* const* argv);

// INVALID_ARGUMENT for what is no map from the table's names to texts.
absl::StatusOr<GivenFlags> ReadYaml(const std::vector<FlagSpec>& table, const std::string& file);

// The table's targets get what was given. INVALID_ARGUMENT of the first that can't take it, or is
// required and missing.
absl::Status SetFlags(const std::vector<FlagSpec>& table, const GivenFlags& given);

}  // namespace rootstock
