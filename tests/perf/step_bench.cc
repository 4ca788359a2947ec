#include "tests/perf/step_bench.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "tests/perf/gpu_ceilings.h"
#include "tests/perf/ranks.h"
#include "tests/perf/step_cases.h"
#include "worker/parallel/node.h"

namespace rootstock {
namespace {

std::string NameOf(const StepBenchOptions& options, const StepCase& c) {
  std::string name =
      absl::StrCat("decode rows=", c.rows, " context=", options.rig.context,
                   " dtype=", DTypeName(options.rig.dtype), options.rig.eager ? " eager" : "");
  if (c.adapters == 0) return name + " base";
  absl::StrAppend(&name, " adapters=", c.adapters);
  const std::vector<int>& all = options.rig.lora_ranks;
  if (!all.empty()) absl::StrAppend(&name, " r=", absl::StrJoin(all, ","));
  if (c.lora_rank > 0) absl::StrAppend(&name, ", those of r=", c.lora_rank);
  return name;
}

std::string PrefixOf(const StepBenchOptions& options, int tp_size) {
  if (tp_size == 1) return "";
  return absl::StrCat(options.rig.alone_of > 0 ? "one rank alone of " : "ranks=", tp_size, " ",
                      options.rig.adapters == 0 ? "" : LoraShardingName(options.rig.sharding),
                      options.rig.adapters == 0 ? "" : " ");
}

// Medians of everything that was measured, in seconds.
struct Medians {
  std::map<StepCase, double> step, unwatched;
  std::map<int, double> base_alone;  // by rows: while no adapter was loaded, before and after
  double read_bytes_per_s = 0;       // of this GPU

  double base(const StepCase& c) const { return step.at({c.rows, 0}); }
  double added(const StepCase& c) const { return step.at(c) - base(c); }
};

void AddGpuResults(const StepBenchOptions& options, const StepRig& rig, const StepCase& c,
                   const Medians& medians, std::vector<BenchResult>& results) {
  const double median = medians.step.at(c), base = medians.base(c);
  const double floor = rig.StepBytes(c) / medians.read_bytes_per_s;
  const std::string name = NameOf(options, c);
  results.push_back({c.adapters == 0 ? "5" : "", name + ", floor / step", floor / median,
                     c.adapters == 0 ? 0.85 : 0, "higher", "ratio"});
  // Sampling counts as idle here; how idle a worker's device is, the worker tells.
  results.push_back({"", name + ", idle between steps", 1 - medians.unwatched.at(c) / median, 0,
                     "lower", "ratio"});
  if (c.adapters == 0) {
    if (medians.base_alone.contains(c.rows)) {
      results.push_back({"10", name + ", with adapters loaded over without",
                         median / medians.base_alone.at(c.rows), 1.005, "lower", "ratio"});
    }
    return;
  }
  const double lora_floor =
      (rig.StepBytes(c) - rig.StepBytes({c.rows, 0})) / medians.read_bytes_per_s;
  const double share = c.rows == 1 ? 0.04 : 0.03;
  results.push_back({"4", name + ", LoRA - base", (median - base) * 1e3,
                     (1.35 * lora_floor + share * base) * 1e3, "lower", "ms"});
  if (c.lora_rank > 0 || options.rig.lora_ranks.size() < 2) return;
  double alone = 0;
  for (const int r : options.rig.lora_ranks) alone += medians.added({c.rows, c.adapters, r});
  results.push_back({"10", name + ", LoRA - base over the sum of each rank's alone",
                     medians.added(c) / alone, 1.10, "lower", "ratio"});
}

// What several ranks add to a case: calls of collectives, and how adapters are split.
absl::Status AddGroupResults(const StepBenchOptions& options, StepRig& rig, const StepCase& c,
                             std::vector<BenchResult>& results) {
  const std::string name = NameOf(options, c);
  const bool sharded = options.rig.sharding == LoraSharding::kFullySharded;
  ASSIGN_OR_RETURN(const CollectiveStats base, rig.CollectivesOf({c.rows, 0}));
  ASSIGN_OR_RETURN(const CollectiveStats calls, rig.CollectivesOf(c));
  double added = 0;
  for (const CollectiveOp op : kAllCollectiveOps) {
    const CollectiveCounters& of = calls.of(op);
    added += static_cast<double>(of.calls) - static_cast<double>(base.of(op).calls);
    results.push_back({"", absl::StrCat(name, ", ", CollectiveOpName(op), " calls of a step"),
                       static_cast<double>(of.calls), 0, "lower", "calls"});
    results.push_back({"", absl::StrCat(name, ", ", CollectiveOpName(op), " bytes of a step"),
                       static_cast<double>(of.bytes), 0, "lower", "bytes"});
  }
  if (c.adapters == 0) return absl::OkStatus();
  results.push_back({sharded ? "" : "11", name + ", collective calls that adapters add", added, 0,
                     "lower", "calls"});
  if (c.lora_rank > 0) return absl::OkStatus();
  for (const int lora_rank : options.rig.lora_ranks) {
    ASSIGN_OR_RETURN(const double share, rig.LargestShare(lora_rank));
    results.push_back({sharded ? "11" : "",
                       absl::StrCat(name, ", a rank's part of an adapter of r=", lora_rank), share,
                       sharded ? 1.15 / rig.tp_size() : 0, "lower", "ratio"});
  }
  return absl::OkStatus();
}

// Before anything else takes its memory; zeros on the host's processor, which has no floors here.
absl::StatusOr<Ceilings> CeilingsFor(const StepBenchOptions& options) {
  Ceilings out;
  if (!options.rig.cuda) return out;
  const std::string why = MeasureCeilings(IsRank() ? FindNode().local_rank : 0, &out);
  if (why.empty()) return out;
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "device",
                   "cuda", why);
}

absl::Status MeasurePrefill(StepRig& rig, const StepBenchOptions& options, const Ceilings& ceilings,
                            int adapters, std::vector<BenchResult>& results) {
  ASSIGN_OR_RETURN(double seconds, rig.Prefill(adapters));
  if (options.rig.cuda) {  // again, warm
    ASSIGN_OR_RETURN(seconds, rig.Prefill(adapters));
  }
  results.push_back({"",
                     absl::StrCat("prefill context=", options.rig.context, " adapters=", adapters),
                     options.rig.rows * options.rig.context / seconds, 0, "higher", "tokens/s"});
  if (adapters == 0 && options.rig.cuda && options.rig.dtype == DType::kBF16 &&
      rig.tp_size() == 1) {
    results.push_back({"5",
                       absl::StrCat("prefill rows=", options.rig.rows, " context=",
                                    options.rig.context, " base, share of the GEMM ceiling"),
                       rig.PrefillFlops() / seconds / (1e6 * ceilings.flops_per_us),
                       options.rig.context < 8000 ? 0.80 : 0.70, "higher", "ratio"});
  }
  return absl::OkStatus();
}

// Prompts take a GPU to its power limit, and it runs slower for a while behind them. Every rank's
// steps are the same.
absl::Status Settle(StepRig& rig, const StepBenchOptions& options) {
  constexpr int kSteps = 128;
  for (int step = 0; options.rig.cuda && step < kSteps; step += options.rig.steps) {
    RETURN_IF_ERROR(rig.DecodeUnwatched({options.rig.rows, 0}).status());
  }
  return absl::OkStatus();
}

// Base rows while no adapter is loaded, by rows.
absl::Status MeasureBaseAlone(StepRig& rig, const StepBenchOptions& options,
                              const std::vector<StepCase>& cases,
                              std::map<int, std::vector<double>>& seconds) {
  for (int round = 0; round < options.rounds; ++round) {
    for (const StepCase& c : cases) {
      if (c.adapters > 0) continue;
      ASSIGN_OR_RETURN(const std::vector<double> s, rig.Decode(c));
      seconds[c.rows].insert(seconds[c.rows].end(), s.begin(), s.end());
    }
  }
  return absl::OkStatus();
}

// Continues the prompts of the file greedily: {"tokens": [[...]]} to options.tokens_out.
absl::StatusOr<std::vector<BenchResult>> ContinuePrompts(StepBenchOptions options) {
  std::ifstream in(options.prompts);
  const nlohmann::json file = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& row : file.is_array() ? file : nlohmann::json::array()) {
    if (row.is_array()) prompts.push_back(row.get<std::vector<int32_t>>());
    if (!row.is_array() || prompts.back().size() != static_cast<size_t>(options.rig.context)) {
      return InvalidField(Reason::kConfigInvalid, "prompts", options.prompts,
                          "must hold lists of --context ids");
    }
  }
  if (prompts.empty()) {
    return InvalidField(Reason::kConfigInvalid, "prompts", options.prompts, "holds no prompt");
  }
  options.rig.rows = static_cast<int>(prompts.size());
  ASSIGN_OR_RETURN(const std::unique_ptr<StepRig> rig, StepRig::Create(options.rig));
  RETURN_IF_ERROR(rig->LoadAdapters());
  ASSIGN_OR_RETURN(const auto tokens, rig->Continue(prompts, options.rig.adapters));
  std::ofstream(options.tokens_out) << nlohmann::json(tokens).dump() << "\n";
  return std::vector<BenchResult>{};
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunStepBench(StepBenchOptions options) {
  ASSIGN_OR_RETURN(options.rig.lora_ranks, ParseLoraRanks(options.lora_ranks));
  if (options.rig.steps < 8) {
    return InvalidField(Reason::kConfigInvalid, "steps", absl::StrCat(options.rig.steps),
                        "must be at least 8");
  }
  if (!options.prompts.empty()) return ContinuePrompts(options);
  ASSIGN_OR_RETURN(const std::vector<StepCase> cases, StepCases(options));
  options.rig.rows = options.rig.adapters = 0;
  for (const StepCase& c : cases) {
    options.rig.rows = std::max(options.rig.rows, c.rows);
    options.rig.adapters = std::max(options.rig.adapters, c.adapters);
  }
  ASSIGN_OR_RETURN(const Ceilings ceilings, CeilingsFor(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<StepRig> rig, StepRig::Create(options.rig));
  std::map<int, std::vector<double>> alone;
  std::vector<BenchResult> prefill;
  // First, so that steps never read KV that nothing has written.
  RETURN_IF_ERROR(MeasurePrefill(*rig, options, ceilings, 0, prefill));
  RETURN_IF_ERROR(Settle(*rig, options));
  const bool gpu_adapters = options.rig.cuda && options.rig.adapters > 0;
  if (gpu_adapters) RETURN_IF_ERROR(MeasureBaseAlone(*rig, options, cases, alone));
  RETURN_IF_ERROR(rig->LoadAdapters());
  if (options.rig.adapters > 0) {
    RETURN_IF_ERROR(MeasurePrefill(*rig, options, ceilings, options.rig.adapters, prefill));
    RETURN_IF_ERROR(Settle(*rig, options));
  }
  std::map<StepCase, std::vector<double>> seconds, unwatched;
  for (int round = 0; round < options.rounds; ++round) {
    for (const StepCase& c : cases) {
      ASSIGN_OR_RETURN(const std::vector<double> s, rig->Decode(c));
      seconds[c].insert(seconds[c].end(), s.begin(), s.end());
      if (!options.rig.cuda) continue;
      ASSIGN_OR_RETURN(const double alone, rig->DecodeUnwatched(c));
      unwatched[c].push_back(alone);
    }
  }
  std::vector<BenchResult> results;
  if (options.rig.cuda) results = CeilingResults(ceilings);
  if (rig->tp_size() > 1 && options.rig.alone_of == 0) {
    for (const StepCase& c : cases) RETURN_IF_ERROR(AddGroupResults(options, *rig, c, results));
  }
  if (gpu_adapters) {
    const StepCase c{options.rig.rows, options.rig.adapters};
    ASSIGN_OR_RETURN(const StepRig::AfterLoad after, rig->StepAfterLoad(c));
    results.push_back({"after load", NameOf(options, c) + ", first step after a load over another",
                       after.first / after.ordinary, 1.2, "lower", "ratio"});
    rig->DropAdapters();
    RETURN_IF_ERROR(MeasureBaseAlone(*rig, options, cases, alone));
  }
  Medians medians;
  medians.read_bytes_per_s = 1e6 * ceilings.read_bytes_per_us;
  for (const StepCase& c : cases) medians.step[c] = Quantile(seconds[c], 0.5);
  for (const StepCase& c : cases) medians.unwatched[c] = Quantile(unwatched[c], 0.5);
  for (const auto& [rows, s] : alone) medians.base_alone[rows] = Quantile(s, 0.5);
  for (const StepCase& c : cases) {
    const std::string name = NameOf(options, c);
    results.push_back({"", name + ", median", medians.step[c] * 1e3, 0, "lower", "ms"});
    results.push_back({"", name + ", p99", Quantile(seconds[c], 0.99) * 1e3, 0, "lower", "ms"});
    if (options.rig.cuda) {
      AddGpuResults(options, *rig, c, medians, results);
    } else if (c.adapters > 0) {
      results.push_back({"cpu lora overhead", name + " over base",
                         medians.step[c] / medians.base(c), 1.2, "lower", "ratio"});
    }
  }
  results.insert(results.end(), prefill.begin(), prefill.end());
  results.push_back({"", "pool of pages", rig->pool_bytes() / 1e9, 0, "higher", "GB"});
  for (BenchResult& result : results) {
    result.name = PrefixOf(options, rig->tp_size()) + result.name;
  }
  return results;
}

}  // namespace rootstock
