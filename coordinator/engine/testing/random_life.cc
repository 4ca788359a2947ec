#include "coordinator/engine/testing/random_life.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"

namespace rootstock {
namespace {

constexpr int kNames = 12, kVersions = 3;
// Of a thousand draws.
constexpr RandomLife::Counts kWeights = {90, 100, 100, 50, 40, 160, 360, 80, 14, 6};

WorldOptions OptionsOf(uint32_t seed) {
  WorldOptions options{
      .seed = seed,
      .limits = {.max_model_len = 64, .max_num_seqs = 6, .max_num_batched_tokens = 16},
      .max_queued = 60,
      .ways = seed % 2 == 0 ? toy::BothWays : nullptr};
  options.in_memory = true;
  options.pool.eviction = static_cast<EvictionPolicy>(seed % 3);
  options.pool.prefetch_bytes = seed % 4 == 0 ? 20000 : uint64_t{1} << 30;
  options.prepare = [seed](FakeGroup& group) {
    group.loads_by_layer = seed % 3 != 0;
    group.host_room = 1 + seed % 5;
    group.disk_room = 2 + seed % 7;
  };
  return options;
}

}  // namespace

const char* RandomLife::NameOf(What what) {
  constexpr const char* kWords[] = {"register",       "upload",
                                    "switch",         "pin",
                                    "unload",         "evict",
                                    "request",        "cancel",
                                    "worker restart", "coordinator restart"};
  return kWords[what];
}

RandomLife::RandomLife(uint32_t seed) : random_(seed), world_(OptionsOf(seed)) {
  for (int i = 0; i < kNames; ++i) {
    names_.push_back(absl::StrCat("a", i));
    contents_.insert(world_.Add(names_.back()));
  }
  for (int i = 0; i < kVersions; ++i) {
    const std::string text = absl::StrCat("v", i);
    EXPECT_TRUE(
        world_.registry->RegisterDirectory("versions", text, "default", /*new_version=*/true).ok());
    contents_.insert(Sha256Of(text));
  }
  SwitchAlias();
  for (const char* name : {"up0", "up1", "up2", "prod"}) names_.push_back(name);
  OpenUploads();
  world_.AddGroup("g1", 24 + seed % 3 * 8);
  world_.AddGroup("g2", 30);
}

void RandomLife::Run(uint64_t operations) {
  for (uint64_t done = 0; done < operations && !testing::Test::HasFailure();) {
    uint64_t draw = random_() % 1000;
    int what = 0;
    for (; draw >= kWeights[static_cast<size_t>(what)]; ++what) {
      draw -= kWeights[static_cast<size_t>(what)];
    }
    SCOPED_TRACE(absl::StrCat("operation ", done, ": ", NameOf(static_cast<What>(what))));
    if (Do(static_cast<What>(what))) {
      ++done;
      ++done_[static_cast<size_t>(what)];
    }
    CheckPages();
    for (uint32_t turns = random_() % 10; turns > 0; --turns) {
      Turn();
      CheckPages();
    }
  }
}

bool RandomLife::Do(What what) {
  switch (what) {
    case kRegister:
      return Register();
    case kUpload:
      return Upload();
    case kSwitch:
      return SwitchAlias();
    case kPin:
      return Pin();
    case kUnload:
      return Unload();
    case kEvict:
      return Evict();
    case kRequest:
      return Request();
    case kCancel:
      return Cancel();
    case kWorkerRestart:
      return RestartWorker();
    case kCoordinatorRestart:
      return RestartCoordinator();
    case kKinds:
      break;
  }
  return false;
}

// What happens by itself.
void RandomLife::Turn() {
  const uint32_t what = random_() % 64;
  if (what < 24) {
    if (FakeGroup& group = Group(); group.pending_steps() > 0) group.CompleteStep();
  } else if (what < 34) {
    CompleteOther();
  } else if (what < 60) {
    for (uint32_t n = random_() % 6; n > 0; --n) world_.executor.RunOne();
  } else if (what == 60) {
    world_.executor.Advance(absl::Milliseconds(400));
  } else if (what == 61) {
    StopSample();
  } else if (what == 62) {
    if (random_() % 6 == 0) FailNext();
  } else if (const auto group = &Group(); !group->attached() && random_() % 4 == 0) {
    EXPECT_TRUE(group->Attach(*world_.engine, random_() % 2 == 0).ok());
  }
}

bool RandomLife::Register() {
  const std::string& name = names_[random_() % (names_.size() - 1)];  // the last is an alias
  if (const auto gone = world_.registry->Unregister(name, "default"); gone.ok() && !gone->empty()) {
    for (const RetiredVersion& version : *gone) {
      if (version.last_name) world_.engine->Unload(version.digest, nullptr);
    }
    return true;
  }
  const std::string text = random_() % 2 == 0 ? "" : absl::StrCat(name, "-v", random_() % 5);
  contents_.insert(world_.Add(name, text));
  return true;
}

// Requests go on with what it stood for when they came.
bool RandomLife::SwitchAlias() {
  std::vector<AliasTarget> targets = {{"versions", 1 + static_cast<uint32_t>(random_() % 3)}};
  if (random_() % 2 == 0) targets.push_back({"versions", 1 + targets[0].version % 3, 2});
  const auto set = world_.registry->SetAlias("prod", "default", targets);
  EXPECT_TRUE(set.ok()) << set.status();
  return true;
}

std::optional<Digest> RandomLife::AnyDigest() {
  const auto adapter = world_.registry->Resolve(AnyName(), "default", "r");
  if (!adapter.ok()) return std::nullopt;
  return adapter->content->digest;
}

bool RandomLife::Unload() {
  const std::optional<Digest> digest = AnyDigest();
  if (digest) UnloadNow(*digest);
  return digest.has_value();
}

void RandomLife::UnloadNow(const Digest& digest) {
  ++unloads_;
  world_.engine->Unload(digest, [this](const TierBytes&) { ++unloaded_; });
}

bool RandomLife::Pin() {
  std::vector<AdapterPin> pins;
  for (uint32_t n = random_() % 3; n > 0; --n) {
    if (const auto digest = AnyDigest()) pins.push_back({*digest, random_() % 2 == 0 ? "" : "g1"});
  }
  if (!world_.engine->CheckPins(pins).ok()) return false;
  pins_ = pins;
  world_.engine->SetPins(std::move(pins));
  return true;
}

bool RandomLife::Evict() {
  const std::string& name = AnyName();
  const auto adapter = world_.registry->Resolve(name, "default", "r");
  if (!adapter.ok()) return false;
  for (const auto& [group_name, group] : world_.groups) {
    if (group->attached() && group->residents().contains(adapter->content->digest)) return false;
  }
  GenerateRequest request = World::Ask(name, {1}, 1);
  request.sampling.seed = random_() % 1000;
  return Send(std::move(request));
}

bool RandomLife::Request() {
  const size_t which = random_() % (names_.size() + 3);
  std::vector<int32_t> prompt(1 + random_() % (random_() % 5 == 0 ? 30 : 8));
  for (int32_t& t : prompt) t = static_cast<int32_t>(random_() % toy::kVocab);
  GenerateRequest r = World::Ask(which < names_.size() ? names_[which] : "base", std::move(prompt),
                                 1 + static_cast<int>(random_() % 14));
  r.n = random_() % 5 == 0 ? 3 : 1;
  r.ignore_eos = random_() % 2 == 0;
  r.sampling.seed = r.ignore_eos ? random_() % 1000 : 1000 + random_() % 1000;
  if (random_() % 4 == 0) r.prompt_logprobs = 0;
  if (random_() % 6 == 0) r.sampling.repetition_penalty = 1.5f;
  return Send(std::move(r));
}

bool RandomLife::Send(GenerateRequest request) {
  auto sent = world_.TryGenerate(std::move(request));
  if (sent.ok()) {
    asked_.push_back({*sent});
    return true;
  }
  EXPECT_TRUE(sent.status().code() == absl::StatusCode::kResourceExhausted ||
              sent.status().code() == absl::StatusCode::kNotFound ||
              // Too large beside the pins.
              sent.status().code() == absl::StatusCode::kInvalidArgument)
      << sent.status();
  return false;
}

RandomLife::Asked* RandomLife::Pick() {
  if (asked_.empty()) return nullptr;
  const size_t recent = std::min<size_t>(asked_.size(), 30);
  Asked& a = asked_[asked_.size() - 1 - random_() % recent];
  return a.sent.heard->done ? nullptr : &a;
}

bool RandomLife::Cancel() {
  Asked* const a = Pick();
  if (a == nullptr) return false;
  a->cancelled = true;
  world_.engine->Cancel(a->sent.number);
  return true;
}

// As a frontend does that found a stop string.
void RandomLife::StopSample() {
  Asked* const a = Pick();
  if (a == nullptr) return;
  const int sample = static_cast<int>(random_() % static_cast<uint32_t>(a->sent.request.n));
  if (a->sent.heard->finish.contains(sample)) return;
  a->stopped.insert(sample);
  a->sent.heard->on_stop(sample);
}

// It comes back a while later, or was just about to.
bool RandomLife::RestartWorker() {
  FakeGroup& group = Group();
  if (!group.attached()) return false;
  group.Die();
  if (random_() % 2 == 0) {
    EXPECT_TRUE(group.Attach(*world_.engine, random_() % 2 == 0).ok());
  }
  return true;
}

// What was acknowledged is there afterwards; what ran is told so.
bool RandomLife::RestartCoordinator() {
  for (auto& [name, group] : world_.groups) {
    group->Die(absl::UnavailableError("the coordinator went"));
  }
  uploads_.reset();
  world_.RestartEngine();
  world_.engine->SetPins(pins_);
  unloads_ = unloaded_;
  for (Asked& a : asked_) a.cut |= !a.cut && absl::IsUnavailable(a.sent.heard->status);
  OpenUploads();
  for (auto& [name, group] : world_.groups) {
    if (random_() % 3 > 0) {
      EXPECT_TRUE(group->Attach(*world_.engine).ok());
    }
  }
  return true;
}

void RandomLife::CompleteOther() {
  FakeGroup& group = Group();
  if (group.pending_others() > 0) group.CompleteOther(random_() % group.pending_others());
}

void RandomLife::FailNext() {
  const std::optional<Digest> digest = AnyDigest();
  if (!digest) return;
  const absl::Status why = MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch,
                                     "adapter", "x", "flipped bit");
  FakeGroup& group = Group();
  random_() % 2 == 0 ? group.FailFetch(*digest, why) : group.FailLoad(*digest, why);
}

}  // namespace rootstock
