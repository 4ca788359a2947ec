#include "tests/perf/step_cases.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

absl::StatusOr<StepCase> ParseCase(const std::string& text) {
  StepCase out;
  const char* end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, out.rows);
  if (rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x') {
    const auto adapters = std::from_chars(rows.ptr + 1, end, out.adapters);
    if (adapters.ec == std::errc() && adapters.ptr == end && out.rows > 0 && out.adapters >= 0) {
      return out;
    }
  }
  return InvalidField(Reason::kConfigInvalid, "case", text, "must be ROWSxADAPTERS");
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseLoraRanks(const std::string& text) {
  std::vector<int> out;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int lora_rank = 0;
    if (!absl::SimpleAtoi(part, &lora_rank) || lora_rank < 1 || lora_rank > 256) {
      return InvalidField(Reason::kConfigInvalid, "lora-rank", text, "must be 1 to 256 each");
    }
    out.push_back(lora_rank);
  }
  return out;
}

absl::StatusOr<std::vector<StepCase>> StepCases(const StepBenchOptions& options) {
  std::vector<StepCase> out;
  const auto add = [&out](const StepCase& c) {
    if (std::find(out.begin(), out.end(), c) == out.end()) out.push_back(c);
  };
  const auto add_all = [&](const StepCase& c) {
    add({c.rows, 0});
    add(c);
    if (c.adapters == 0 || options.rig.lora_ranks.size() < 2) return;
    for (const int lora_rank : options.rig.lora_ranks) add({c.rows, c.adapters, lora_rank});
  };
  if (options.cases.empty()) add_all({options.rig.rows, options.rig.adapters});
  for (const std::string& text : options.cases) {
    ASSIGN_OR_RETURN(const StepCase c, ParseCase(text));
    add_all(c);
  }
  const bool none = options.rig.lora_ranks.empty() && options.rig.adapter_dirs.empty();
  for (const StepCase& c : out) {
    if (c.adapters == 0 || !none) continue;
    return InvalidField(Reason::kConfigInvalid, "case", absl::StrCat(c.rows, "x", c.adapters),
                        "wants adapters: --lora-rank, or --adapter DIR");
  }
  return out;
}

}  // namespace rootstock
