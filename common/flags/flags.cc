#include "common/flags/flags.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/flag_sources.h"
#include "common/flags/flag_value.h"

namespace rootstock {

absl::StatusOr<std::optional<std::string>> ParseFlags(const ProgramInfo& program,
                                                      const std::vector<FlagSpec>& table, int argc,
                                                      const char* const* argv) {
  ASSIGN_OR_RETURN(CommandLine line, ReadCommandLine(table, /*words_allowed=*/false, argc, argv));
  if (line.help) return HelpText(absl::StrCat(program.name, ": ", program.about), {}, table);
  if (line.version) return absl::StrCat(program.name, " ", program.version, "\n");
  GivenFlags given;
  if (!line.config.empty()) {
    ASSIGN_OR_RETURN(given, ReadYaml(table, line.config));
  }
  for (auto& [name, texts] : line.given) given[name] = std::move(texts);
  RETURN_IF_ERROR(SetFlags(table, given));
  return std::nullopt;
}

std::optional<int> ParseFlagsOrExit(const ProgramInfo& program, const std::vector<FlagSpec>& table,
                                    int argc, const char* const* argv) {
  const auto text = ParseFlags(program, table, argc, argv);
  if (!text.ok()) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(),
                 std::string(text.status().message()).c_str());
    return 2;
  }
  if (!text->has_value()) return std::nullopt;
  std::fputs((*text)->c_str(), stdout);
  return 0;
}

}  // namespace rootstock
