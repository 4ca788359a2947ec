// requests_total: however a request ends, it counts once, and as what it was.
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

// Outcomes that are not 0.
std::map<std::string, double> Outcomes(const World& world) {
  std::istringstream lines(world.metrics.Text());
  std::map<std::string, double> out;
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, "rootstock_requests_total{")) continue;
    const size_t at = line.find("outcome=\"") + 9;
    const double value = std::stod(line.substr(line.rfind(' ')));
    if (value != 0) out[line.substr(at, line.find('"', at) - at)] += value;
  }
  return out;
}

double Shed(const World& world, const std::string& reason) {
  return world.Metric("shed_total{reason=\"" + reason + "\",tenant_class=\"default\"}");
}

GenerateRequest Long() { return World::Ask("base", {5, 6}, 100); }

GenerateRequest WithDeadline(World& world, absl::Duration after) {
  GenerateRequest r = Long();
  r.deadline = world.executor.clock()() + after;
  return r;
}

FakeGroup& Running(World& world, GenerateRequest request, World::Sent* sent) {
  FakeGroup& group = world.AddGroup("g");
  *sent = world.Generate(std::move(request));
  world.Run();
  group.CompleteStep();
  world.Run();
  return group;
}

// A request for an adapter whose content can't be had.
void FailFetch(World& world, absl::Status why) {
  world.AddGroup("g").FailFetch(world.Add("a"), std::move(why));
  const auto sent = world.Generate(World::Ask("a", {5}, 3));
  world.Settle();
  EXPECT_TRUE(sent.heard->done);
  EXPECT_FALSE(absl::IsNotFound(sent.heard->status)) << "the client's model is known";
}

struct End {
  const char* name;
  const char* outcome;
  std::function<void(World&)> happen;
};

const End kEnds[] = {
    {"answered", "ok",
     [](World& world) {
       world.AddGroup("g");
       world.Generate(Long());
       world.Settle();
     }},
    {"bad field", "client_error",
     [](World& world) { world.TryGenerate(World::Ask("base", {}, 1)).IgnoreError(); }},
    {"unknown model", "client_error",
     [](World& world) { world.TryGenerate(World::Ask("bose", {5}, 1)).IgnoreError(); }},
    {"answer over the context", "client_error",
     [](World& world) { world.TryGenerate(World::Ask("base", {5}, 256)).IgnoreError(); }},
    {"fits no group", "client_error",
     [](World& world) {
       world.AddGroup("g", 3);
       world.Generate(Long());
       world.Settle();
     }},
    {"too busy before the engine", "overloaded",
     [](World& world) {
       world.engine->Refused(MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull,
                                       "request", "", "too many calls wait"));
       EXPECT_EQ(Shed(world, "queue_full"), 1);
     }},
    {"refused while draining", "overloaded",
     [](World& world) {
       EXPECT_TRUE(world.engine->Drain(absl::InfiniteFuture()).ok());
       EXPECT_FALSE(world.TryGenerate(Long()).ok());
       EXPECT_EQ(Shed(world, "draining"), 1);
     }},
    {"queued at the drain's deadline", "overloaded",
     [](World& world) {
       world.Generate(Long());
       world.engine->Drain(world.executor.clock()()).IgnoreError();
     }},
    {"running at the drain's deadline", "overloaded",
     [](World& world) {
       World::Sent sent;
       Running(world, Long(), &sent);
       world.engine->Drain(world.executor.clock()()).IgnoreError();
     }},
    {"running when the coordinator stops", "overloaded",
     [](World& world) {
       World::Sent sent;
       Running(world, Long(), &sent);
       world.engine.reset();
     }},
    {"cancelled before the engine", "client_cancelled",
     [](World& world) {
       world.engine->Refused(MakeError(absl::StatusCode::kCancelled, Reason::kCancelled, "request",
                                       "", "cancelled by the client"));
     }},
    {"cancelled in the queue", "client_cancelled",
     [](World& world) { world.engine->Cancel(world.Generate(Long()).number); }},
    {"cancelled twice while it runs", "client_cancelled",
     [](World& world) {
       World::Sent sent;
       Running(world, WithDeadline(world, absl::Seconds(10)), &sent);
       world.engine->Cancel(sent.number);
       world.engine->Cancel(sent.number);
     }},
    {"its deadline had passed", "deadline_exceeded",
     [](World& world) { world.TryGenerate(WithDeadline(world, -absl::Seconds(1))).IgnoreError(); }},
    {"its deadline passed before the engine", "deadline_exceeded",
     [](World& world) {
       world.engine->Refused(MakeError(absl::StatusCode::kDeadlineExceeded,
                                       Reason::kDeadlineExceeded, "deadline", "", "it passed"));
     }},
    {"its deadline passed in the queue", "deadline_exceeded",
     [](World& world) {
       world.Generate(WithDeadline(world, absl::Seconds(10)));
       world.Run();
       world.executor.Advance(absl::Seconds(10));
     }},
    {"its deadline passed while it ran", "deadline_exceeded",
     [](World& world) {
       World::Sent sent;
       Running(world, WithDeadline(world, absl::Seconds(10)), &sent);
       world.executor.Advance(absl::Seconds(10));
     }},
    {"cancelled by gRPC as its deadline passed", "deadline_exceeded",
     [](World& world) {
       World::Sent sent;
       Running(world, WithDeadline(world, absl::Seconds(10)), &sent);
       world.executor.Advance(absl::Seconds(10));
       world.engine->Cancel(sent.number);  // before our own timer's task has run
     }},
    {"cancelled by the client's gRPC, whose clock is ahead", "deadline_exceeded",
     [](World& world) {
       World::Sent sent;
       Running(world, WithDeadline(world, absl::Seconds(10)), &sent);
       world.executor.Advance(absl::Seconds(9.9));
       world.engine->Cancel(sent.number);
     }},
    {"content lost in our store", "internal_error",
     [](World& world) { FailFetch(world, absl::NotFoundError("can't open it")); }},
    {"content corrupt in our store", "internal_error",
     [](World& world) {
       FailFetch(world, MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest",
                                  "1", "other content came"));
     }},
    {"content that does not come in time", "internal_error",
     [](World& world) { FailFetch(world, absl::DeadlineExceededError("120 s")); }},
    {"content that could not be written", "internal_error",
     [](World& world) {
       FailFetch(world, MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "path", "p",
                                  "write failed"));
     }},
    {"content missing at our start", "internal_error",
     [](World& world) {
       const Digest digest = world.Add("a");
       std::filesystem::remove(world.directory / "data/blobs" / digest.Hex());
       world.RestartEngine();
       EXPECT_FALSE(world.TryGenerate(World::Ask("a", {5}, 3)).ok());
     }},
    {"a step failed", "internal_error",
     [](World& world) {
       World::Sent sent;
       Running(world, Long(), &sent).tamper = [](Completion& c) {
         c.outcome = InvalidField(Reason::kInvalidArgument, "rows", "1", "refused");
         c.step = {};
       };
       world.groups["g"]->CompleteStep();
       world.groups["g"]->tamper = nullptr;
     }},
    {"its group died under it three times", "worker_lost",
     [](World& world) {
       World::Sent sent;
       FakeGroup& group = Running(world, Long(), &sent);
       for (int death = 0; death < 3; ++death) {
         group.Die();
         world.Run();
         EXPECT_TRUE(group.Attach(*world.engine).ok());
         world.Run();
       }
     }},
};

TEST(EngineOutcomes, EveryEndCountsOnceAndAsWhatItWas) {
  for (const End& end : kEnds) {
    SCOPED_TRACE(end.name);
    World world;
    end.happen(world);
    world.Settle();
    const std::map<std::string, double> once = {{end.outcome, 1}};
    EXPECT_EQ(Outcomes(world), once);
    if (std::string(end.outcome) != "client_cancelled") {
      for (const char* phase : {"queued", "prefill", "decode"}) {
        EXPECT_EQ(world.Metric(absl::StrCat("client_disconnects_total{phase=\"", phase, "\"}")), 0);
      }
    }
    world.engine.reset();
    EXPECT_EQ(Outcomes(world), once) << "and not again at the end";
  }
}

TEST(EngineOutcomes, AFullQueueCountsAsOverloadedAndShed) {
  World world({.max_queued = 0});
  EXPECT_FALSE(world.TryGenerate(Long()).ok());
  EXPECT_EQ(Outcomes(world), (std::map<std::string, double>{{"overloaded", 1}}));
  EXPECT_EQ(Shed(world, "queue_full"), 1);
}

TEST(EngineOutcomes, APlaceNeedsNoModelAndCountsNothing) {
  World world({.max_queued = 1});
  const auto check = [&](GenerateRequest r) { return world.engine->Enter(r).status().code(); };
  EXPECT_EQ(check(World::Ask("known to nobody", {5}, 3)), absl::StatusCode::kOk);
  GenerateRequest bad = Long();
  bad.n = 0;
  EXPECT_EQ(check(bad), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(WithDeadline(world, -absl::Seconds(1))), absl::StatusCode::kDeadlineExceeded);
  const auto queued = world.Generate(Long());
  EXPECT_EQ(check(Long()), absl::StatusCode::kResourceExhausted);
  world.engine->Cancel(queued.number);
  world.Settle();
  EXPECT_EQ(check(Long()), absl::StatusCode::kOk);
  EXPECT_TRUE(world.engine->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(check(Long()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Outcomes(world), (std::map<std::string, double>{{"client_cancelled", 1}}));
  EXPECT_EQ(Shed(world, "queue_full") + Shed(world, "draining"), 0);
}

}  // namespace
}  // namespace rootstock
