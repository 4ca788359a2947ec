// Programs with commands: `loractl adapter add NAME PATH --tenant T`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags/flags.h"

namespace rootstock {

struct CommandSpec {
  std::string name;  // its words: "adapter add"
  std::string help;  // one line
  // Words after the name, in order; those that are not required come last.
  std::vector<FlagSpec> arguments;
  std::vector<FlagSpec> table;  // flags beside the program's own
  std::function<int()> run;     // returns the exit code
};

// What to do: run a command, or print a text (help or version) where there is none.
struct CommandChoice {
  const CommandSpec* command = nullptr;  // one of those given
  std::string text;
};

// ParseFlags for a program with commands. `table` are the flags of all commands; flags stand
// anywhere. A config file may hold any command's flags: those of others are read over. Two commands
// may have flags of one name, then of one kind. Errors as ParseFlags, and for a missing or unknown
// command, a flag of another command, a word too many, a missing argument.
absl::StatusOr<CommandChoice> ParseCommand(const ProgramInfo& program,
                                           const std::vector<FlagSpec>& table,
                                           const std::vector<CommandSpec>& commands, int argc,
                                           const char* const* argv);

// ParseCommand for a main(): prints or runs. The exit code: 2 after an error.
int RunCommand(const ProgramInfo& program, const std::vector<FlagSpec>& table,
               const std::vector<CommandSpec>& commands, int argc, const char* const* argv);

}  // namespace rootstock
