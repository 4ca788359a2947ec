// Random lives of requests, adapters and groups: no contract broken, every stream exact.
#include <algorithm>
#include <random>

#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/engine/testing/world.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

WorldOptions OptionsOf(uint32_t seed) {
  WorldOptions options{
      .seed = seed,
      .limits = {.max_model_len = 64, .max_num_seqs = 6, .max_num_batched_tokens = 16},
      .max_queued = 60,
      .ways = seed % 2 == 0 ? toy::BothWays : nullptr};
  options.pool.eviction = static_cast<EvictionPolicy>(seed % 3);
  options.pool.prefetch_bytes = seed % 4 == 0 ? 20000 : uint64_t{1} << 30;
  options.prepare = [seed](FakeGroup& group) {
    group.loads_by_layer = seed % 3 != 0;
    group.host_room = 1 + seed % 5;
    group.disk_room = 2 + seed % 7;
  };
  return options;
}

class RandomLife {
 public:
  explicit RandomLife(uint32_t seed) : random_(seed), world_(OptionsOf(seed)) {
    for (int i = 0; i < 8; ++i) names_.push_back("a" + std::to_string(i));
    for (const std::string& name : names_) world_.Add(name);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(world_.registry
                      ->RegisterDirectory("versions", "v" + std::to_string(i), "default",
                                          /*new_version=*/true)
                      .ok());
    }
    SwitchAlias();
    names_.push_back("prod");
    world_.AddGroup("g1", 24 + seed % 3 * 8);
    world_.AddGroup("g2", 30);
  }

  void Operation() {
    const uint32_t what = random_() % 26;
    if (what < 3) {
      Submit();
    } else if (what == 3) {
      Cancel();
    } else if (what == 4) {
      if (random_() % 4 == 0) StopSample();
    } else if (what == 5) {
      if (random_() % 8 == 0) Reregister();
      if (random_() % 8 == 0) SwitchAlias();
    } else if (what == 6) {
      if (random_() % 20 == 0) Death();
    } else if (what == 7) {
      if (random_() % 3 == 0) world_.executor.Advance(absl::Milliseconds(400));
    } else if (what < 14) {
      if (FakeGroup& group = Group(); group.pending_steps() > 0) group.CompleteStep();
    } else if (what < 17) {
      CompleteOther();
    } else if (what == 17) {
      if (random_() % 10 == 0) FailNext();
    } else if (what == 18) {
      if (random_() % 4 == 0) Unload();
    } else if (what == 19) {
      if (random_() % 12 == 0) Pin();
    } else {
      for (uint32_t n = random_() % 6; n > 0; --n) world_.executor.RunOne();
    }
  }

  void FinishAndCheck() {
    for (auto& [name, group] : world_.groups) {
      if (group->attached()) continue;
      EXPECT_TRUE(group->Attach(*world_.engine).ok());
    }
    world_.Settle();
    for (const Asked& a : asked_) Check(a);
    world_.ExpectClean();
    ExpectAllFreed();
    const EngineStatus status = world_.engine->Status();
    EXPECT_EQ(status.queued, 0u);
    EXPECT_EQ(status.running, 0u);
  }
  bool failed() const { return testing::Test::HasFailure(); }
  int completed() const { return completed_; }
  World& world() { return world_; }

 private:
  struct Asked {
    World::Sent sent;
    bool cancelled = false;
    std::set<int> stopped;  // samples in which a stop string was found
  };

  // Requests go on with what it stood for when they came.
  void SwitchAlias() {
    std::vector<AliasTarget> targets = {{"versions", 1 + static_cast<uint32_t>(random_() % 3)}};
    if (random_() % 2 == 0) targets.push_back({"versions", 1 + targets[0].version % 3, 2});
    EXPECT_TRUE(world_.registry->SetAlias("prod", "default", targets).ok());
  }
  void Unload() {
    const auto adapter = world_.registry->Resolve(names_[random_() % names_.size()], "default", "");
    if (adapter.ok()) UnloadNow(adapter->content->digest);
  }
  void UnloadNow(const Digest& digest) {
    ++unloads_;
    world_.engine->Unload(digest, [this](const TierBytes&) { ++unloaded_; });
  }
  void Pin() {
    std::vector<AdapterPin> pins;
    for (uint32_t n = random_() % 3; n > 0; --n) {
      const auto adapter =
          world_.registry->Resolve(names_[random_() % names_.size()], "default", "");
      if (adapter.ok()) pins.push_back({adapter->content->digest, random_() % 2 == 0 ? "" : "g1"});
    }
    if (world_.engine->CheckPins(pins).ok()) world_.engine->SetPins(std::move(pins));
  }

  // Pages are back to base, on the nodes' tiers too, once all is unloaded.
  void ExpectAllFreed() {
    world_.engine->SetPins({});
    for (const std::string& name : names_) {
      const auto adapter = world_.registry->Resolve(name, "default", "");
      if (adapter.ok()) UnloadNow(adapter->content->digest);
    }
    for (int i = 0; i < 3; ++i) UnloadNow(Sha256Of("v" + std::to_string(i)));
    world_.Settle();
    world_.executor.Advance(absl::Seconds(1));  // what ended requests held leaves at a tick
    world_.Settle();
    EXPECT_EQ(unloaded_, unloads_);
    for (const auto& [name, group] : world_.groups) {
      EXPECT_EQ(world_.StatusOf(name).pages_adapter, 0u);
      EXPECT_EQ(world_.StatusOf(name).pages_free, group->geometry.num_pages - 1);
      EXPECT_TRUE(group->residents().empty());
      EXPECT_TRUE(group->pinned().empty());
      EXPECT_EQ(world_.StatusOf(name).cached.size(),
                group->fetched().size() + group->on_host().size());
    }
    world_.ExpectClean();
  }

  FakeGroup& Group() { return *world_.groups[random_() % 2 == 0 ? "g1" : "g2"]; }

  void Submit() {
    const size_t which = random_() % (names_.size() + 3);
    std::vector<int32_t> prompt(1 + random_() % (random_() % 5 == 0 ? 30 : 8));
    for (int32_t& t : prompt) t = static_cast<int32_t>(random_() % toy::kVocab);
    GenerateRequest r = World::Ask(which < names_.size() ? names_[which] : "base",
                                   std::move(prompt), 1 + random_() % 14);
    r.n = random_() % 5 == 0 ? 3 : 1;
    r.ignore_eos = random_() % 2 == 0;
    r.sampling.seed = r.ignore_eos ? random_() % 1000 : 1000 + random_() % 1000;
    if (random_() % 4 == 0) r.prompt_logprobs = 0;
    if (random_() % 6 == 0) r.sampling.repetition_penalty = 1.5f;
    auto sent = world_.TryGenerate(std::move(r));
    if (sent.ok()) {
      asked_.push_back({*sent});
      return;
    }
    EXPECT_TRUE(sent.status().code() == absl::StatusCode::kResourceExhausted ||
                sent.status().code() == absl::StatusCode::kNotFound)
        << sent.status();
  }
  Asked* Pick() {
    if (asked_.empty()) return nullptr;
    const size_t recent = std::min<size_t>(asked_.size(), 30);
    return &asked_[asked_.size() - 1 - random_() % recent];
  }
  void Cancel() {
    Asked* a = Pick();
    if (a == nullptr || random_() % 2 == 0) return;
    a->cancelled = true;
    world_.engine->Cancel(a->sent.number);
  }
  // As a frontend does that found a stop string.
  void StopSample() {
    Asked* a = Pick();
    if (a == nullptr || a->sent.heard->done) return;
    const int sample = static_cast<int>(random_() % static_cast<uint32_t>(a->sent.request.n));
    if (a->sent.heard->finish.contains(sample)) return;
    a->stopped.insert(sample);
    a->sent.heard->on_stop(sample);
  }
  void Reregister() {
    const std::string& name = names_[random_() % (names_.size() - 1)];  // the last is an alias
    if (const auto gone = world_.registry->Unregister(name, "default");
        gone.ok() && !gone->empty()) {
      if (gone->at(0).last_name) world_.engine->Unload(gone->at(0).digest, nullptr);
    } else {
      world_.Add(name, random_() % 2 == 0 ? "" : name + "-v" + std::to_string(random_() % 5));
    }
  }
  void Death() {
    FakeGroup& group = Group();
    if (group.attached()) {
      group.Die();
    } else {
      EXPECT_TRUE(group.Attach(*world_.engine, random_() % 2 == 0).ok());
    }
  }
  void CompleteOther() {
    FakeGroup& group = Group();
    if (group.pending_others() > 0) group.CompleteOther(random_() % group.pending_others());
  }
  void FailNext() {
    const auto adapter =
        world_.registry->Resolve(names_[random_() % names_.size()], "default", "r");
    if (!adapter.ok()) return;
    const absl::Status why = MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch,
                                       "adapter", "x", "flipped bit");
    FakeGroup& group = Group();
    if (random_() % 2 == 0) {
      group.FailFetch(adapter->content->digest, why);
    } else {
      group.FailLoad(adapter->content->digest, why);
    }
  }

  void Check(const Asked& a) {
    const Heard& heard = *a.sent.heard;
    ASSERT_TRUE(heard.done) << heard.accepted.request_id << " of " << heard.accepted.model;
    EXPECT_EQ(heard.closes, 1);
    EXPECT_FALSE(heard.pushed_after_end);
    const bool ok = heard.status.ok();
    completed_ += ok;
    if (!ok) {
      const auto code = heard.status.code();
      EXPECT_TRUE((code == absl::StatusCode::kCancelled && a.cancelled) ||
                  code == absl::StatusCode::kDataLoss ||
                  // Beside pins that came later.
                  (code == absl::StatusCode::kInvalidArgument &&
                   GetErrorDetail(heard.status)->reason == Reason::kTooLarge) ||
                  (code == absl::StatusCode::kInternal &&
                   GetErrorDetail(heard.status)->reason == Reason::kWorkerLost))
          << heard.status;
    }
    for (int i = 0; i < a.sent.request.n; ++i) {
      const auto it = heard.tokens.find(i);
      const std::vector<int32_t> got =
          it == heard.tokens.end() ? std::vector<int32_t>{} : it->second;
      const std::vector<int32_t> want = world_.ExpectedTokens(a.sent, static_cast<uint32_t>(i));
      ASSERT_LE(got.size(), want.size());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << heard.accepted.request_id;
      if (ok && !a.stopped.contains(i)) {
        EXPECT_EQ(got.size(), want.size());
      }
    }
    if (a.sent.request.prompt_logprobs && ok && !a.stopped.contains(0)) {
      ASSERT_EQ(heard.prompt_logprobs.size(), a.sent.request.token_ids->size() - 1);
      for (size_t k = 0; k < heard.prompt_logprobs.size(); ++k) {
        EXPECT_EQ(heard.prompt_logprobs[k].logprob, -static_cast<float>(k + 1));
      }
    }
  }

  std::mt19937 random_;
  World world_;
  std::vector<std::string> names_;
  std::vector<Asked> asked_;
  int completed_ = 0;
  int unloads_ = 0, unloaded_ = 0;
};

TEST(EngineProperty, EveryStreamIsExactAndEveryPageComesBack) {
  int completed = 0;
  uint64_t loads = 0, sharded = 0, drops = 0, eager = 0, refused = 0, pins = 0;
  for (uint32_t seed = 1; seed <= 42; ++seed) {
    SCOPED_TRACE(seed);
    RandomLife life(seed);
    for (int i = 0; i < 2500; ++i) life.Operation();
    life.FinishAndCheck();
    completed += life.completed();
    for (const auto& [name, group] : life.world().groups) {
      loads += group->loads;
      sharded += group->sharded_loads;
      drops += group->drops;
      eager += group->eager_plans;
      refused += group->refused_plans;
      pins += group->pins;
    }
    if (life.failed()) break;
  }
  // The lives were eventful.
  EXPECT_GT(completed, 3000);
  EXPECT_GT(loads, 1500u);
  EXPECT_GT(drops, 1000u);
  EXPECT_GT(sharded, 150u);
  EXPECT_GT(eager, 500u);
  EXPECT_GT(refused, 20u);
  EXPECT_GT(pins, 100u);
}

}  // namespace
}  // namespace rootstock
