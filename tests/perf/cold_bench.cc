#include "tests/perf/cold_bench.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/perf/cold_rig.h"

namespace rootstock {
namespace {

constexpr char kGoal[] = "8";

double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

// A load beside one copy; first tokens cold and warm in turn.
absl::Status MeasureTransfers(ColdRig& rig, const ColdBenchOptions& options,
                              const std::string& name, std::vector<BenchResult>& out) {
  std::vector<double> copies, of_image, orders, loads, warm, cold, exposed;
  for (int round = 0; round < options.rounds; ++round) {
    // The first behind a rest takes longer, whatever it is.
    RETURN_IF_ERROR(rig.CopySeconds().status());
    ASSIGN_OR_RETURN(const double copy, rig.CopySeconds());
    ASSIGN_OR_RETURN(const double image, rig.CopyImageSeconds(2));
    ASSIGN_OR_RETURN(const double load, rig.Load(2));
    ASSIGN_OR_RETURN(const double first_warm, rig.FirstToken(2, /*cold=*/false));
    RETURN_IF_ERROR(rig.Drop(2));
    ASSIGN_OR_RETURN(const double first_cold, rig.FirstToken(2, /*cold=*/true));
    RETURN_IF_ERROR(rig.Drop(2));
    if (round == 0) continue;
    copies.push_back(copy);
    of_image.push_back(image);
    orders.push_back(rig.order_seconds());
    loads.push_back(load);
    warm.push_back(first_warm);
    cold.push_back(first_cold);
    exposed.push_back(first_cold - first_warm);
  }
  const double bytes = static_cast<double>(rig.adapter_bytes());
  const double transfer = Median(loads);
  out.push_back({"", absl::StrCat(name, " adapter"), bytes / 1e6, 0, "lower", "MB"});
  out.push_back(
      {"", absl::StrCat(name, " pinned copy"), bytes / 1e9 / Median(copies), 0, "higher", "GB/s"});
  out.push_back({"", absl::StrCat(name, " copy from the host cache"),
                 bytes / 1e9 / Median(of_image), 0, "higher", "GB/s"});
  out.push_back(
      {"", absl::StrCat(name, " order of a load"), 1e6 * Median(orders), 0, "lower", "us"});
  out.push_back({"", absl::StrCat(name, " load"), bytes / 1e9 / transfer, 0, "higher", "GB/s"});
  out.push_back({kGoal, absl::StrCat(name, " load / pinned copy"), Median(copies) / transfer, 0.90,
                 "higher", "ratio"});
  out.push_back(
      {"", absl::StrCat(name, " warm first token"), 1e3 * Median(warm), 0, "lower", "ms"});
  out.push_back(
      {"", absl::StrCat(name, " cold first token"), 1e3 * Median(cold), 0, "lower", "ms"});
  out.push_back({kGoal, absl::StrCat(name, " (cold - warm) / transfer"), Median(exposed) / transfer,
                 0.15, "lower", "ratio"});
  return absl::OkStatus();
}

absl::Status MeasureDecodes(ColdRig& rig, const ColdBenchOptions& options, const std::string& name,
                            std::vector<BenchResult>& out) {
  std::vector<double> seconds[2];  // without loads, with
  int64_t taken_off[2] = {};
  int loads = 0;
  // From the same context on: a step takes the longer the more there is to attend to.
  constexpr int kTurns = 4;
  for (int turn = 0; turn < 2 * kTurns; ++turn) {
    const bool loading = turn % 2 == 1;
    RETURN_IF_ERROR(rig.StartRows());
    ASSIGN_OR_RETURN(const auto steps, rig.Decode(options.steps / kTurns, loading));
    seconds[loading].insert(seconds[loading].end(), steps.begin(), steps.end());
    taken_off[loading] += rig.taken_off();
    loads += rig.loads_beside();
  }
  const auto& [quiet, beside] = seconds;
  const std::string rows = absl::StrCat(name, " decode rows=", options.rows);
  out.push_back({"", rows + " loads beside", static_cast<double>(loads), 0, "higher", "loads"});
  for (const bool loading : {false, true}) {
    out.push_back({"", absl::StrCat(rows, " processor taken away", loading ? " while loading" : ""),
                   static_cast<double>(taken_off[loading]), 0, "lower", "times"});
  }
  for (const double q : {0.5, 0.99}) {
    const std::string what = absl::StrCat(rows, q < 0.9 ? " median" : " p99");
    out.push_back({"", what, 1e3 * Quantile(quiet, q), 0, "lower", "ms"});
    out.push_back({"", what + " while loading", 1e3 * Quantile(beside, q), 0, "lower", "ms"});
    out.push_back({q < 0.9 ? "" : kGoal, what + " while loading / without",
                   Quantile(beside, q) / Quantile(quiet, q), 1.03, "lower", "ratio"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunColdBench(const ColdBenchOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ColdRig> rig, ColdRig::Create(options));
  const std::string name =
      absl::StrCat("cold r=", options.lora_rank, " prompt=", options.prompt_tokens,
                   " dtype=", DTypeName(options.dtype));
  std::vector<BenchResult> out;
  std::vector<double> stages;
  for (int adapter = 0; adapter < ColdRig::kAdapters; ++adapter) {
    ASSIGN_OR_RETURN(stages.emplace_back(), rig->Stage(adapter));
  }
  out.push_back({"", name + " image in the host cache", 1e3 * Median(stages), 0, "lower", "ms"});
  RETURN_IF_ERROR(rig->Load(0).status());
  RETURN_IF_ERROR(MeasureTransfers(*rig, options, name, out));
  RETURN_IF_ERROR(MeasureDecodes(*rig, options, name, out));
  return out;
}

}  // namespace rootstock
