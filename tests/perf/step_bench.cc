#include "tests/perf/step_bench.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr double kH200ReadBytesPerSecond = 4.39e12;

struct Case {
  int rows = 0;
  int adapters = 0;
  friend auto operator<=>(const Case&, const Case&) = default;
};

absl::StatusOr<Case> ParseCase(const std::string& text) {
  Case out;
  const char* end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, out.rows);
  if (rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x') {
    const auto adapters = std::from_chars(rows.ptr + 1, end, out.adapters);
    if (adapters.ec == std::errc() && adapters.ptr == end && out.rows > 0 && out.adapters >= 0) {
      return out;
    }
  }
  return InvalidField(Reason::kInvalidArgument, "case", text, "must be ROWSxADAPTERS");
}

// With the base beside each case.
absl::StatusOr<std::vector<Case>> Cases(const StepBenchOptions& options) {
  std::vector<Case> out;
  const auto add = [&out](const Case& c) {
    if (std::find(out.begin(), out.end(), c) == out.end()) out.push_back(c);
  };
  if (options.cases.empty()) {
    add({options.rig.rows, 0});
    add({options.rig.rows, options.rig.adapters});
  }
  for (const std::string& text : options.cases) {
    ASSIGN_OR_RETURN(const Case c, ParseCase(text));
    add({c.rows, 0});
    add(c);
  }
  return out;
}

std::string NameOf(const StepBenchOptions& options, const Case& c) {
  std::string name = absl::StrCat("decode rows=", c.rows, " context=", options.rig.context,
                                  " dtype=", DTypeName(options.rig.dtype));
  if (c.adapters > 0) absl::StrAppend(&name, " adapters=", c.adapters);
  if (c.adapters > 0 && options.rig.lora_rank > 0) {
    absl::StrAppend(&name, " r=", options.rig.lora_rank);
  }
  if (c.adapters == 0) absl::StrAppend(&name, " base");
  return name;
}

void AddGpuResults(const StepBenchOptions& options, const StepRig& rig, const Case& c,
                   double median, double base, double unwatched,
                   std::vector<BenchResult>& results) {
  const double floor = rig.StepBytes(c.rows, c.adapters) / kH200ReadBytesPerSecond;
  const std::string name = NameOf(options, c);
  results.push_back({c.adapters == 0 ? "5" : "", name + ", floor / step", floor / median,
                     c.adapters == 0 ? 0.85 : 0, "higher", "ratio"});
  results.push_back(
      {"7", name + ", idle between steps", 1 - unwatched / median, 0.01, "lower", "ratio"});
  if (c.adapters == 0) return;
  const double lora_floor =
      (rig.StepBytes(c.rows, c.adapters) - rig.StepBytes(c.rows, 0)) / kH200ReadBytesPerSecond;
  const double share = c.rows == 1 ? 0.04 : 0.03;
  results.push_back({"4", name + ", LoRA - base", (median - base) * 1e3,
                     (1.35 * lora_floor + share * base) * 1e3, "lower", "ms"});
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunStepBench(StepBenchOptions options) {
  ASSIGN_OR_RETURN(const std::vector<Case> cases, Cases(options));
  options.rig.rows = options.rig.adapters = 0;
  for (const Case& c : cases) {
    options.rig.rows = std::max(options.rig.rows, c.rows);
    options.rig.adapters = std::max(options.rig.adapters, c.adapters);
  }
  if (options.rig.steps < 8) {
    return InvalidField(Reason::kInvalidArgument, "steps", absl::StrCat(options.rig.steps),
                        "must be at least 8");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<StepRig> rig, StepRig::Create(options.rig));
  std::map<int, double> prefill;  // by adapters
  for (const int adapters : {0, options.rig.adapters}) {
    ASSIGN_OR_RETURN(prefill[adapters], rig->Prefill(adapters));
    if (options.rig.cuda) {  // again, warm
      ASSIGN_OR_RETURN(prefill[adapters], rig->Prefill(adapters));
    }
  }
  std::map<Case, std::vector<double>> seconds;
  std::map<Case, std::vector<double>> unwatched;
  for (int round = 0; round < options.rounds; ++round) {
    for (const Case& c : cases) {
      ASSIGN_OR_RETURN(const std::vector<double> s, rig->Decode(c.rows, c.adapters));
      seconds[c].insert(seconds[c].end(), s.begin(), s.end());
      if (!options.rig.cuda) continue;
      ASSIGN_OR_RETURN(const double alone, rig->DecodeUnwatched(c.rows, c.adapters));
      unwatched[c].push_back(alone);
    }
  }
  std::vector<BenchResult> results;
  for (const Case& c : cases) {
    const double median = Quantile(seconds[c], 0.5);
    const double base = Quantile(seconds[{c.rows, 0}], 0.5);
    const std::string name = NameOf(options, c);
    results.push_back({"", name + ", median", median * 1e3, 0, "lower", "ms"});
    results.push_back({"", name + ", p99", Quantile(seconds[c], 0.99) * 1e3, 0, "lower", "ms"});
    if (options.rig.cuda) {
      AddGpuResults(options, *rig, c, median, base, Quantile(unwatched[c], 0.5), results);
    } else if (c.adapters > 0) {
      results.push_back(
          {"cpu lora overhead", name + " over base", median / base, 1.2, "lower", "ratio"});
    }
  }
  for (const auto& [adapters, s] : prefill) {
    results.push_back(
        {"", absl::StrCat("prefill context=", options.rig.context, " adapters=", adapters),
         options.rig.rows * options.rig.context / s, 0, "higher", "tokens/s"});
  }
  for (BenchResult& result : results) {
    if (rig->tp_size() > 1) result.name = absl::StrCat("ranks=", rig->tp_size(), " ", result.name);
  }
  return results;
}

}  // namespace rootstock
