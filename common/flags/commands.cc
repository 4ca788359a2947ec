#include "common/flags/commands.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/flags/flag_sources.h"
#include "common/flags/flag_value.h"

namespace rootstock {
namespace {

using Table = std::vector<FlagSpec>;

bool Has(const Table& table, const std::string& name) {
  return std::ranges::any_of(table, [&](const FlagSpec& flag) { return flag.name == name; });
}

// The program's flags and every command's, each name once.
Table AllFlags(const Table& table, const std::vector<CommandSpec>& commands) {
  Table all = table;
  for (const CommandSpec& command : commands) {
    for (const FlagSpec& flag : command.table) {
      if (!Has(all, flag.name)) all.push_back(flag);
    }
  }
  return all;
}

Table FlagsOf(const Table& table, const CommandSpec& command) {
  Table own = command.table;
  own.insert(own.end(), table.begin(), table.end());
  return own;
}

std::vector<std::string> WordsOf(const CommandSpec& command) {
  return absl::StrSplit(command.name, ' ');
}

// The command whose words `words` begins with.
const CommandSpec* Find(const std::vector<CommandSpec>& commands,
                        const std::vector<std::string>& words) {
  for (const CommandSpec& command : commands) {
    const std::vector<std::string> name = WordsOf(command);
    if (name.size() <= words.size() && std::equal(name.begin(), name.end(), words.begin())) {
      return &command;
    }
  }
  return nullptr;
}

// "adapter add NAME PATH", "generate [PROMPT]"
std::string Usage(const CommandSpec& command) {
  std::string usage = command.name;
  for (const FlagSpec& argument : command.arguments) {
    const std::string shown = FlagPlaceholder(argument);
    absl::StrAppend(&usage,
                    argument.required ? absl::StrCat(" ", shown) : absl::StrCat(" [", shown, "]"));
  }
  return usage;
}

std::string Help(const ProgramInfo& program, const Table& table,
                 const std::vector<CommandSpec>& commands, const CommandSpec* command) {
  if (command != nullptr) {
    return HelpText(absl::StrCat(program.name, " ", Usage(*command), ": ", command->help), {},
                    FlagsOf(table, *command));
  }
  HelpLines lines;
  for (const CommandSpec& each : commands) {
    lines.emplace_back(Usage(each),
                       absl::StrCat(each.help, each.table.empty() ? "" : "; has flags"));
  }
  return HelpText(absl::StrCat(program.name, ": ", program.about), std::move(lines), table);
}

absl::Status Wrong(const std::string& field, const std::string& value, const std::string& text) {
  return InvalidField(Reason::kConfigInvalid, field, value, text);
}

absl::Status SetArguments(const CommandSpec& command, const std::vector<std::string>& words) {
  const size_t skip = WordsOf(command).size();
  if (words.size() > skip + command.arguments.size()) {
    return Wrong("command line", words[skip + command.arguments.size()],
                 absl::StrCat("a word too many for ", Usage(command)));
  }
  for (size_t i = 0; i < command.arguments.size(); ++i) {
    const FlagSpec& argument = command.arguments[i];
    if (skip + i < words.size()) {
      RETURN_IF_ERROR(SetFlag(argument, {words[skip + i]}));
    } else if (argument.required) {
      return Wrong(argument.name, "", absl::StrCat("is required: ", Usage(command)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandChoice> ParseCommand(const ProgramInfo& program, const Table& table,
                                           const std::vector<CommandSpec>& commands, int argc,
                                           const char* const* argv) {
  const Table all = AllFlags(table, commands);
  ASSIGN_OR_RETURN(CommandLine line, ReadCommandLine(all, /*words_allowed=*/true, argc, argv));
  const CommandSpec* command = Find(commands, line.words);
  if (line.help) return CommandChoice{nullptr, Help(program, table, commands, command)};
  if (line.version) {
    return CommandChoice{nullptr, absl::StrCat(program.name, " ", program.version, "\n")};
  }
  if (command == nullptr) {
    return Wrong("command", absl::StrJoin(line.words, " "),
                 line.words.empty() ? "is required; --help lists them"
                                    : "there is none of this name; --help lists them");
  }
  const Table own = FlagsOf(table, *command);
  for (const auto& [name, texts] : line.given) {
    if (!Has(own, name))
      return Wrong(name, texts[0], absl::StrCat("is no flag of ", command->name));
  }
  GivenFlags given;
  if (!line.config.empty()) {
    ASSIGN_OR_RETURN(given, ReadYaml(all, line.config));
  }
  for (auto& [name, texts] : line.given) given[name] = std::move(texts);
  RETURN_IF_ERROR(SetFlags(own, given));
  RETURN_IF_ERROR(SetArguments(*command, line.words));
  return CommandChoice{command, ""};
}

int RunCommand(const ProgramInfo& program, const Table& table,
               const std::vector<CommandSpec>& commands, int argc, const char* const* argv) {
  const auto choice = ParseCommand(program, table, commands, argc, argv);
  if (!choice.ok()) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(),
                 std::string(choice.status().message()).c_str());
    return 2;
  }
  if (choice->command != nullptr) return choice->command->run();
  std::fputs(choice->text.c_str(), stdout);
  return 0;
}

}  // namespace rootstock
