// Goal 9 in virtual time: many adapters over pages for some cost little beside a few that stay.
#include "tests/perf/trace/trace.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "coordinator/engine/testing/toy_model.h"
#include "gtest/gtest.h"
#include "tests/sim/machine.h"

namespace rootstock {
namespace {

constexpr int kMany = 1000, kFit = 64, kFew = 8, kSequences = 64, kRequests = 1000;
constexpr int kSlots = kSequences + kSequences * 3 / 16;  // as trace.sh has it
constexpr int kMinLength = 8, kMaxLength = 64;
constexpr uint32_t kPageTokens = 4;

class TraceSim : public testing::Test {
 protected:
  TraceSim() {
    double pages = 0;
    for (int i = 0; i < kMany; ++i) {
      pages += toy::FootprintOf(world_.Add("a" + std::to_string(i))).pages;
    }
    const uint32_t kv = kSequences * (kMinLength + kMaxLength) / kPageTokens;
    const auto fit = static_cast<uint32_t>(kFit * pages / kMany);
    group_ = &world_.AddGroup("g", kv + fit + 1, kPageTokens);
    Touch(kMany);
  }

  // All have been on the host; the first are on the device.
  void Touch(int adapters) {
    for (int i = 0; i < adapters; ++i) {
      world_.Generate(World::Ask("a" + std::to_string(i), {5}, 2));
      world_.Settle();
    }
  }

  struct Run {
    double rate = 0;             // requests a second
    std::vector<double> firsts;  // ms to the first token
  };
  // Each when it comes; with `streams`, as soon as so few are under way.
  Run Play(const std::vector<TraceRequest>& trace, size_t streams = 0) {
    Touch(kFew);
    Machine machine(world_, *group_);
    Run run;
    struct Asked {
      World::Sent sent;
      double at;
      bool first;
    };
    std::vector<Asked> under_way;
    size_t next = 0;
    const auto comes = [&] { return streams > 0 ? machine.now() : trace[next].at * 1000; };
    while (next < trace.size() || !under_way.empty()) {
      while (next < trace.size() && comes() <= machine.now() &&
             (streams == 0 || under_way.size() < streams)) {
        under_way.push_back({Ask(trace[next++]), machine.now(), false});
      }
      machine.Look();
      double until = machine.NextEnd();
      if (streams == 0 && next < trace.size()) until = std::min(until, comes());
      machine.RunUntil(until);
      for (Asked& asked : under_way) {
        if (asked.first || !asked.sent.heard->tokens.contains(0)) continue;
        asked.first = true;
        run.firsts.push_back(machine.now() - asked.at);
      }
      std::erase_if(under_way, [](const Asked& asked) { return asked.sent.heard->done.load(); });
    }
    run.rate = static_cast<double>(trace.size()) / machine.now() * 1000;
    std::sort(run.firsts.begin(), run.firsts.end());
    return run;
  }

  World::Sent Ask(const TraceRequest& asked) {
    std::vector<int32_t> prompt(static_cast<size_t>(asked.prompt_tokens));
    for (int32_t& token : prompt) token = 3 + static_cast<int32_t>(random_() % 30);
    return world_.Generate(
        World::Ask("a" + std::to_string(asked.adapter), std::move(prompt), asked.output_tokens));
  }

  static std::vector<TraceRequest> Trace(int adapters, double alpha, double cv, double rate) {
    return MakeTrace({.adapters = adapters,
                      .alpha = alpha,
                      .cv = cv,
                      .rate = rate,
                      .min_length = kMinLength,
                      .max_length = kMaxLength},
                     kRequests);
  }
  static double P99(const Run& run) { return run.firsts[run.firsts.size() * 99 / 100]; }

  static WorldOptions Options() {
    WorldOptions options;
    options.limits = {.max_model_len = 256, .max_num_seqs = kSlots, .max_num_batched_tokens = 256};
    options.pool.max_decode_rows = kSequences;
    options.prepare = [](FakeGroup& group) { group.loads_by_layer = true; };
    return options;
  }
  World world_{Options()};
  FakeGroup* group_ = nullptr;
  std::minstd_rand random_{7};
};

TEST_F(TraceSim, ManyAdaptersServeAsMuchAndAlmostAsSoonAsAFew) {
  constexpr size_t kStreams = kSequences + kSequences / 4;
  const Run few = Play(Trace(kFew, 1, 1, 1), kStreams);
  double saturation = 0;
  for (const double alpha : {1.0, 0.3}) {
    const uint64_t loads = group_->loads;
    const Run many = Play(Trace(kMany, alpha, 1, 1), kStreams);
    if (alpha == 1) {
      EXPECT_GT(group_->loads - loads, kRequests * 8 / 10);
    }
    EXPECT_GE(many.rate / few.rate, 0.95) << alpha;
    std::printf("alpha %.1f: saturation %.3f of %.1f req/s\n", alpha, many.rate / few.rate,
                few.rate);
    saturation = saturation == 0 ? many.rate : std::min(saturation, many.rate);
  }
  for (const double cv : {1.0, 4.0}) {
    const Run alone = Play(Trace(kFew, 1, cv, 0.9 * saturation));
    for (const double alpha : {1.0, 0.3}) {
      const Run many = Play(Trace(kMany, alpha, cv, 0.9 * saturation));
      EXPECT_LE(P99(many) / P99(alone), 1.5) << "cv " << cv << ", alpha " << alpha;
      std::printf("cv %.0f alpha %.1f: p99 first token %.1f ms, of a few %.1f ms\n", cv, alpha,
                  P99(many), P99(alone));
    }
  }
  world_.Settle();
  world_.ExpectClean();
}

// What lies on the host, alone and beside others that run.
TEST_F(TraceSim, AColdAdapterCostsItsFirstTokenItsLoadAndNoStep) {
  const MachineCosts costs;
  uint64_t loads = 0;
  const auto firsts = [&](int adapter, int others) {
    std::vector<TraceRequest> trace;
    for (int i = 0; i < others; ++i) trace.push_back({0, i, 20, 60});
    trace.push_back({0.1, adapter, 20, 2});
    loads = group_->loads;
    const Run run = Play(trace);
    loads = group_->loads - loads;
    return std::accumulate(run.firsts.begin(), run.firsts.end(), 0.0);
  };
  firsts(3, kFew);  // the few come once
  for (const int others : {0, kFew}) {
    const double warm = firsts(3, others);
    EXPECT_EQ(loads, 0u);
    const double more = firsts(100 + others, others) - warm;
    EXPECT_EQ(loads, 1u);
    EXPECT_LE(more, costs.other + costs.eager + 0.01) << others;
    std::printf("beside %d: %.1f ms later than a warm one\n", others, more);
  }
}

}  // namespace
}  // namespace rootstock
