// A program's flags as one table: command line and config file read the same rows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rootstock {

// Takes a flag's texts where no variable can: called once if the flag is given, with one text but
// for lists; "true" or "false" for switches. Its error names flag and value.
struct FlagSetter {
  enum class Kind { kText, kSwitch, kList };
  Kind kind = Kind::kText;
  std::function<absl::Status(const std::vector<std::string>&)> set;
};

// Where a flag's value goes. What it points to at ParseFlags is the default. A list flag may be
// repeated; a config file gives it as a sequence.
using FlagTarget = std::variant<bool*, int32_t*, int64_t*, uint32_t*, double*, std::string*,
                                std::vector<std::string>*, FlagSetter>;

struct FlagSpec {
  std::string name;  // "max-model-len": --max-model-len, and the key of a config file
  FlagTarget target;
  std::string help;  // one line
  // What --help shows for the value; empty: by type, or the allowed values.
  std::string placeholder = {};
  std::vector<std::string> allowed = {};               // of text; empty: anything
  double min = std::numeric_limits<double>::lowest();  // of numbers, inclusive
  double max = std::numeric_limits<double>::max();
  bool required = false;  // given on the command line or in the file
};

struct ProgramInfo {
  std::string name;
  std::string about;    // one line
  std::string version;  // what --version prints after the name
};

// Fills the targets: from `--config FILE` (YAML, flag names as keys), then from the command line,
// which wins. Adds --config, --help and --version. Returns text to print instead of running (help
// or version), nothing when the program shall run. Errors: INVALID_ARGUMENT `flag=value: reason`
// for unknown flags and keys, bad types, values outside the range or list; targets may be partly
// filled then.
absl::StatusOr<std::optional<std::string>> ParseFlags(const ProgramInfo& program,
                                                      const std::vector<FlagSpec>& table, int argc,
                                                      const char* const* argv);

// ParseFlags for a main(): prints what there is to print. The exit code, when the program shall
// not run: 0 after help or version, 2 after an error.
std::optional<int> ParseFlagsOrExit(const ProgramInfo& program, const std::vector<FlagSpec>& table,
                                    int argc, const char* const* argv);

}  // namespace rootstock
