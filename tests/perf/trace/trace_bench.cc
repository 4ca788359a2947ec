#include "tests/perf/trace/trace_bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "tests/perf/trace/trace.h"
#include "tests/perf/trace/trace_run.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLoad = 0.9;  // of saturation

// 0: not a positive number.
double Positive(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && value > 0 ? value : 0;
}

absl::Status Check(const TraceBenchOptions& options) {
  const auto positive = [](const std::vector<std::string>& all) {
    return !all.empty() &&
           std::all_of(all.begin(), all.end(), [](const auto& text) { return Positive(text) > 0; });
  };
  if (!positive(options.alphas) || !positive(options.cvs)) {
    return InvalidField(Reason::kConfigInvalid, "alpha, cv", "", "want positive numbers");
  }
  double rate = 0;
  if (!absl::SimpleAtod(options.rate, &rate) || !(rate >= 0)) {
    return InvalidField(Reason::kConfigInvalid, "rate", options.rate, "wants requests a second");
  }
  const int resident = std::max(options.resident, options.in_turn);
  if (static_cast<int>(options.names.size()) <= resident) {
    return InvalidField(Reason::kConfigInvalid, "name", absl::StrCat(options.names.size()),
                        absl::StrCat("wants more adapters than the resident ", resident));
  }
  if (options.requests < 2 * options.streams) {
    return InvalidField(Reason::kConfigInvalid, "requests", absl::StrCat(options.requests),
                        absl::StrCat("wants two for each of the ", options.streams, " streams"));
  }
  if (options.max_length <= options.min_length || options.last_id < options.first_id) {
    return InvalidField(Reason::kConfigInvalid, "max-length, last-id", "",
                        "must be above min-length, first-id");
  }
  return absl::OkStatus();
}

double MeanOutput(const std::vector<TraceRequest>& trace) {
  double tokens = 0;
  for (const TraceRequest& r : trace) tokens += r.output_tokens;
  return tokens / static_cast<double>(trace.size());
}

// Whose adapters a run draws from.
struct Side {
  enum Kind { kFew, kInTurn, kMany };
  Kind kind = kMany;
  int adapters = 0;
  std::string alpha;  // of the many
  std::string name;

  int resident() const { return kind == kMany ? 0 : adapters; }
};

class Comparison {
 public:
  explicit Comparison(const TraceBenchOptions& options)
      : options_(options), run_(options), rate_(Positive(options.rate)) {
    sides_.push_back({Side::kFew, options.resident, "1",
                      absl::StrCat("adapters=", options.resident, " resident")});
    if (options.in_turn > 0) {
      sides_.push_back({Side::kInTurn, options.in_turn, "1",
                        absl::StrCat("adapters=", options.in_turn, " resident in turn")});
    }
    const int all = static_cast<int>(options.names.size());
    for (const std::string& alpha : options.alphas) {
      sides_.push_back({Side::kMany, all, alpha, absl::StrCat("adapters=", all, " alpha=", alpha)});
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(run_.Touch(static_cast<int>(options_.names.size())));
    LogInfo("each adapter was asked once in ", SecondsSinceStart(), " s");
    for (int round = 0; round < options_.rounds; ++round) {
      if (Positive(options_.rate) == 0) {
        RETURN_IF_ERROR(
            ForEachSide(round, [&](const Side& side) { return Saturate(side, round); }));
      }
      if (rate_ == 0) rate_ = kLoad * LowestSaturation();
      for (const std::string& cv : options_.cvs) {
        RETURN_IF_ERROR(
            ForEachSide(round, [&](const Side& side) { return Replay(side, cv, round); }));
      }
    }
    return absl::OkStatus();
  }

  std::vector<BenchResult> Results() const {
    std::vector<BenchResult> out;
    for (const Side& side : sides_) AddSaturation(side, out);
    for (const std::string& cv : options_.cvs) {
      for (const Side& side : sides_) AddFirstTokens(side, cv, out);
    }
    return out;
  }

 private:
  template <typename Measure>
  absl::Status ForEachSide(int round, const Measure& measure) {
    std::vector<Side> sides = sides_;
    if (round % 2 == 1) std::reverse(sides.begin(), sides.end());
    for (const Side& side : sides) {
      if (options_.seconds > 0 && SecondsSinceStart() > options_.seconds) break;
      // All sides begin with the few, or their own, on the device.
      RETURN_IF_ERROR(run_.Touch(std::max(options_.resident, side.resident())));
      RETURN_IF_ERROR(measure(side));
    }
    return absl::OkStatus();
  }

  double SecondsSinceStart() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  std::vector<TraceRequest> TraceOf(const Side& side, const std::string& cv, int round) const {
    const TraceShape shape = {.adapters = side.adapters,
                              .alpha = Positive(side.alpha),
                              .cv = Positive(cv),
                              .rate = rate_ > 0 ? rate_ : 1,
                              .min_length = options_.min_length,
                              .max_length = options_.max_length,
                              .seed = static_cast<uint64_t>(options_.seed + round),
                              .in_turn = side.kind == Side::kInTurn};
    return MakeTrace(shape, options_.requests);
  }

  absl::Status Saturate(const Side& side, int round) {
    const auto trace = TraceOf(side, "1", round);
    ASSIGN_OR_RETURN(const double tokens, run_.Saturate(trace));
    saturation_[side.name][round] = tokens / MeanOutput(trace);
    LogInfo(SecondsSinceStart(), " s: round ", round, ", ", side.name, ": ", tokens, " tokens/s");
    return absl::OkStatus();
  }

  absl::Status Replay(const Side& side, const std::string& cv, int round) {
    ASSIGN_OR_RETURN(const auto firsts, run_.Replay(TraceOf(side, cv, round)));
    auto& all = firsts_[{cv, side.name}];
    all.insert(all.end(), firsts.begin(), firsts.end());
    LogInfo(SecondsSinceStart(), " s: round ", round, ", cv=", cv, ", ", side.name,
            ": first token p50 ", Quantile(firsts, 0.5) * 1e3, " ms, p99 ",
            Quantile(firsts, 0.99) * 1e3, " ms");
    return absl::OkStatus();
  }

  // req/s; 0 when the many have not run.
  double LowestSaturation() const {
    double lowest = 0;
    for (const Side& side : sides_) {
      const auto found = saturation_.find(side.name);
      if (side.kind != Side::kMany || found == saturation_.end()) continue;
      const double rate = found->second.begin()->second;
      if (lowest == 0 || rate < lowest) lowest = rate;
    }
    return lowest;
  }

  void AddSaturation(const Side& side, std::vector<BenchResult>& out) const {
    const auto found = saturation_.find(side.name);
    if (found == saturation_.end()) return;
    std::vector<double> rates, ratios;
    const auto few = saturation_.find(sides_.front().name);
    for (const auto& [round, rate] : found->second) {
      rates.push_back(rate);
      if (few == saturation_.end()) continue;
      const auto beside = few->second.find(round);
      if (beside != few->second.end()) ratios.push_back(rate / beside->second);
    }
    const std::string name = absl::StrCat("trace ", side.name);
    out.push_back(
        {"", absl::StrCat(name, ", saturation"), Quantile(rates, 0.5), 0, "higher", "req/s"});
    if (side.kind == Side::kFew || ratios.empty()) return;
    const bool goal = side.kind == Side::kMany;
    out.push_back({goal ? "9" : "",
                   absl::StrCat(name, " over ", options_.resident, " resident, saturation"),
                   Quantile(ratios, 0.5), goal ? 0.95 : 0, "higher", "ratio"});
    out.push_back({"", absl::StrCat(name, " over ", options_.resident, " resident, lowest round"),
                   Quantile(ratios, 0), 0, "higher", "ratio"});
  }

  void AddFirstTokens(const Side& side, const std::string& cv,
                      std::vector<BenchResult>& out) const {
    const auto found = firsts_.find({cv, side.name});
    if (found == firsts_.end()) return;
    const std::string name = absl::StrCat("trace cv=", cv, " ", side.name);
    for (const auto& [what, q] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
      out.push_back({"", absl::StrCat(name, ", ", what, " first token"),
                     Quantile(found->second, q) * 1e3, 0, "lower", "ms"});
    }
    const auto few = firsts_.find({cv, sides_.front().name});
    if (side.kind == Side::kFew || few == firsts_.end()) return;
    const bool goal = side.kind == Side::kMany;
    out.push_back(
        {goal ? "9" : "",
         absl::StrCat(name, " over ", options_.resident, " resident, p99 first token at ",
                      Positive(options_.rate) > 0 ? absl::StrCat(options_.rate, " req/s") : "90 %"),
         Quantile(found->second, 0.99) / Quantile(few->second, 0.99), goal ? 1.5 : 0, "lower",
         "ratio"});
  }

  const TraceBenchOptions& options_;
  const Clock::time_point start_ = Clock::now();
  TraceRun run_;
  std::vector<Side> sides_;
  double rate_ = 0;                                          // of replays, req/s
  std::map<std::string, std::map<int, double>> saturation_;  // req/s by side and round
  std::map<std::pair<std::string, std::string>, std::vector<double>> firsts_;  // by cv and side
};

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunTraceBench(const TraceBenchOptions& options) {
  RETURN_IF_ERROR(Check(options));
  Comparison comparison(options);
  RETURN_IF_ERROR(comparison.Run());
  return comparison.Results();
}

}  // namespace rootstock
