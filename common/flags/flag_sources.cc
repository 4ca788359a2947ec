#include "common/flags/flag_sources.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/flag_value.h"
#include "yaml-cpp/yaml.h"

namespace rootstock {
namespace {

absl::StatusOr<std::vector<std::string>> YamlTexts(const FlagSpec& flag, const YAML::Node& node) {
  const bool sequence = node.IsSequence() && IsList(flag);
  if (!sequence && !node.IsScalar()) {
    return InvalidField(Reason::kConfigInvalid, flag.name, node.IsNull() ? "null" : "",
                        IsList(flag) ? "must be a list of texts" : "must be a single value");
  }
  if (!sequence) return std::vector<std::string>{node.Scalar()};
  std::vector<std::string> texts;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) {
      return InvalidField(Reason::kConfigInvalid, flag.name, "", "must be a list of texts");
    }
    texts.push_back(item.Scalar());
  }
  return texts;
}

// The last one first, as CLI11 takes them. "--flag=" is split: it would take the next argument for
// the value that is empty.
std::vector<std::string> Arguments(const std::vector<FlagSpec>& table, int argc,
                                   const char* const* argv) {
  std::vector<std::string> arguments;
  bool flags = true;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    flags = flags && argument != "--";
    const bool empty = flags && std::ranges::any_of(table, [&](const FlagSpec& flag) {
                         return !IsBool(flag) && argument == absl::StrCat("--", flag.name, "=");
                       });
    arguments.push_back(empty ? argument.substr(0, argument.size() - 1) : argument);
    if (empty) arguments.emplace_back();
  }
  std::ranges::reverse(arguments);
  return arguments;
}

}  // namespace

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<FlagSpec>& table, bool words_allowed,
                                            int argc, const char* const* argv) {
  CLI::App app;
  app.set_help_flag();
  app.set_config();
  CommandLine line;
  app.add_option("--config", line.config);
  app.add_flag("--help", line.help);
  app.add_flag("--version", line.version);
  if (words_allowed) app.add_option("words", line.words);
  std::map<std::string, CLI::Option*> options;
  for (const FlagSpec& flag : table) {
    CLI::Option* option = IsBool(flag) ? app.add_flag("--" + flag.name)
                                       : app.add_option("--" + flag.name)->allow_extra_args(false);
    if (IsList(flag)) option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->expected(1, -1);
    if (IsList(flag)) option->allow_extra_args(false);
    option->type_name(FlagPlaceholder(flag));  // what a missing value is called
    options[flag.name] = option;
  }
  try {
    app.parse(Arguments(table, argc, argv));
  } catch (const CLI::ParseError& error) {
    return MakeError(absl::StatusCode::kInvalidArgument, Reason::kConfigInvalid, "command line", "",
                     error.what());
  }
  for (const auto& [name, option] : options) {
    if (option->count() > 0) line.given[name] = option->results();
  }
  return line;
}

absl::StatusOr<GivenFlags> ReadYaml(const std::vector<FlagSpec>& table, const std::string& file) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(file);
  } catch (const YAML::BadFile&) {
    return InvalidField(Reason::kConfigInvalid, "config", file,
                        "no such file, or it can't be read");
  } catch (const std::exception& error) {  // the library's, or a folder that is no file
    return InvalidField(Reason::kConfigInvalid, "config", file, error.what());
  }
  if (!root.IsMap() && !root.IsNull()) {
    return InvalidField(Reason::kConfigInvalid, "config", file, "must be a map of flag names");
  }
  GivenFlags given;
  for (const auto& entry : root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const auto flag = std::find_if(table.begin(), table.end(),
                                   [&](const FlagSpec& spec) { return spec.name == key; });
    if (flag == table.end()) {
      const std::string value = entry.second.IsScalar() ? entry.second.Scalar() : "";
      return InvalidField(Reason::kUnknownField, key, value, absl::StrCat("unknown key in ", file));
    }
    if (given.contains(key)) {
      return InvalidField(Reason::kDuplicate, key, "", absl::StrCat("twice in ", file));
    }
    ASSIGN_OR_RETURN(given[key], YamlTexts(*flag, entry.second));
  }
  return given;
}

absl::Status SetFlags(const std::vector<FlagSpec>& table, const GivenFlags& given) {
  for (const FlagSpec& flag : table) {
    if (const auto it = given.find(flag.name); it != given.end()) {
      RETURN_IF_ERROR(SetFlag(flag, it->second));
    } else if (flag.required) {
      return InvalidField(Reason::kConfigInvalid, flag.name, "", "is required");
    }
  }
  return absl::OkStatus();
}

}  // namespace rootstock
