// The coordinator's side of tests of worker groups: contents, probes, plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/lora/peft_loader.h"
#include "worker/link/fake_coordinator.h"

namespace rootstock {

namespace fs = std::filesystem;

// A folder that `variable` names, else the one of the build: tests may run on another host.
inline fs::path FolderOf(const char* variable, const char* built) {
  const char* const named = std::getenv(variable);
  return named != nullptr ? named : built;
}
inline const fs::path kCases =
    FolderOf("ROOTSTOCK_SOURCE_DIR", ROOTSTOCK_SOURCE_DIR) / "tests/cases";
inline const std::string kModel = "tiny-llama";
inline constexpr uint32_t kNumPages = 4000;
inline constexpr uint32_t kPageTokens = 4;
inline constexpr GroupLimits kLimits{200, 64, 512, 20};

struct Probe {
  std::string adapter;  // empty: the base
  std::vector<int32_t> prompt, greedy;
};

inline nlohmann::json ReadExpectation(const fs::path& dir) {
  std::ifstream in(dir / "expect.json");
  return nlohmann::json::parse(in);
}

// What the coordinator would know: contents by digest, and requests.
class Cases {
 public:
  Cases() {
    spec = *LoadModelSpec(kCases / "models" / kModel);
    Add(ReadExpectation(kCases / "models" / kModel), "");
    for (const auto& entry : fs::directory_iterator(kCases / "adapters")) {
      const nlohmann::json expect = ReadExpectation(entry.path());
      if (expect["model"] != kModel || expect["verdict"] != "accept") continue;
      const std::string name = entry.path().filename();
      blobs[name] = EncodeCanonical(*LoadPeftAdapter(entry.path(), spec, {}), spec);
      Add(expect, name);
    }
  }
  LoadAdapter LoadOf(const std::string& name, int tp_size, uint32_t page_bytes, uint32_t& next_page,
                     LoraSharding sharding = LoraSharding::kReplicated) const {
    const std::string& blob = blobs.at(name);
    const auto content = CanonicalAdapter::Parse(
        std::span(reinterpret_cast<const uint8_t*>(blob.data()), blob.size()), spec);
    const auto layout = AdapterLayout::Create(spec, content->spec(), *MakeTpPlan(spec, tp_size),
                                              sharding, DType::kF32, page_bytes);
    LoadAdapter load{Sha256Of(blob), layout->id(), sharding, {}};
    for (uint32_t i = 0; i < layout->num_pages(); ++i) load.pages.push_back(PageId(next_page++));
    return load;
  }

  ModelSpec spec;
  std::map<std::string, std::string> blobs;
  std::vector<Probe> probes;

 private:
  void Add(const nlohmann::json& expect, const std::string& adapter) {
    for (const nlohmann::json& p : expect["probes"]) {
      probes.push_back({adapter, p["prompt"], p["greedy"]});
    }
  }
};

// The coordinator's side of one attach.
class Driver {
 public:
  Driver(ScriptedStream& stream, const Cases& cases, int tp_size, Epoch epoch)
      : stream_(stream), cases_(cases), tp_size_(tp_size), epoch_(epoch) {
    report = stream_.Attach(epoch_, kLimits);
    EXPECT_EQ(report.geometry.num_pages, kNumPages);
  }

  Completion Do(decltype(Command::kind) kind) {
    Send(std::move(kind));
    return stream_.ReadCompletion();
  }
  void Send(decltype(Command::kind) kind) {
    stream_.Send(CommandId(++commands_), epoch_, std::move(kind));
  }
  // `ways` in turn.
  void LoadAll(const std::vector<LoraSharding>& ways = {LoraSharding::kReplicated}) {
    size_t turn = 0;
    for (const auto& [name, blob] : cases_.blobs) {
      const LoadAdapter load = cases_.LoadOf(name, tp_size_, report.geometry.page_bytes, next_page,
                                             ways[turn++ % ways.size()]);
      EXPECT_TRUE(Do(PrefetchAdapter{load.digest}).outcome.ok());
      const Completion loaded = Do(load);
      EXPECT_TRUE(loaded.outcome.ok()) << loaded.outcome;
    }
  }
  // Sends a Load of each, from the host's cache, and waits for none: RunProbes hears of them.
  void BeginLoads(LoraSharding way) {
    std::vector<LoadAdapter> loads;
    for (const auto& [name, blob] : cases_.blobs) {
      loads.push_back(cases_.LoadOf(name, tp_size_, report.geometry.page_bytes, next_page, way));
      const PrefetchAdapter prefetch{loads.back().digest, loads.back().layout_id, way, true};
      EXPECT_TRUE(Do(prefetch).outcome.ok());
    }
    for (const LoadAdapter& load : loads) {
      Send(load);
      loading_.insert(commands_);
    }
  }
  // All probes in one batch, prompts in two chunks, every plan one step ahead of its result. eager:
  // behind the copies of adapters that are being loaded.
  void RunProbes(bool eager = false) {
    eager_ = eager;
    std::vector<std::vector<int32_t>> got(cases_.probes.size());
    size_t longest = 0;
    for (const Probe& p : cases_.probes) longest = std::max(longest, p.greedy.size());
    Send(Prompts(true));
    Send(Prompts(false));
    const Completion first = ReadStep();
    ASSERT_TRUE(first.outcome.ok()) << first.outcome;
    for (size_t step = 1; step <= longest; ++step) {
      if (step < longest) Send(Decode(static_cast<uint32_t>(step - 1)));
      const Completion c = ReadStep();
      ASSERT_TRUE(c.outcome.ok()) << c.outcome;
      ASSERT_EQ(c.step.rows.size(), got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(c.step.rows[i].slot.value, i);
        got[i].push_back(c.step.rows[i].tokens.at(0));
      }
    }
    for (size_t i = 0; i < got.size(); ++i) {
      got[i].resize(cases_.probes[i].greedy.size());
      EXPECT_EQ(got[i], cases_.probes[i].greedy) << cases_.probes[i].adapter;
    }
    while (!loading_.empty()) TakeLoaded(stream_.ReadCompletion());
    ReleaseSlots release;
    for (uint32_t i = 0; i < got.size(); ++i) release.slots.push_back(SequenceSlot(i));
    EXPECT_TRUE(Do(release).outcome.ok());
  }

  // Steps of all probes, one ahead of the result, over and over until the group is gone; calls
  // `busy` once it is under way.
  void RunUntilLost(const std::function<void()>& busy) {
    const uint32_t first_page = next_page;
    for (int round = 0;; ++round) {
      next_page = first_page;
      Send(Prompts(true));
      Send(Prompts(false));
      for (uint32_t step = 0; step < 50; ++step) {
        if (stream_.AtEnd()) return;
        Send(Decode(step));
        if (round == 0 && step == 20) busy();
      }
      ReleaseSlots release;
      for (uint32_t i = 0; i < cases_.probes.size(); ++i) release.slots.push_back(SequenceSlot(i));
      for (int left = 0; left < 2; ++left) {
        if (stream_.AtEnd()) return;
      }
      Send(release);
      if (stream_.AtEnd()) return;
    }
  }

  AttachReport report;
  uint32_t next_page = 1;

 private:
  // Whether it is one of a Load that was begun.
  bool TakeLoaded(const Completion& c) {
    if (loading_.erase(c.id.value) == 0) return false;
    EXPECT_TRUE(c.outcome.ok()) << c.outcome;
    return true;
  }
  Completion ReadStep() {
    Completion c = stream_.ReadCompletion();
    while (TakeLoaded(c)) c = stream_.ReadCompletion();
    return c;
  }
  StepPlan Prompts(bool first) {
    StepPlan plan;
    plan.eager = eager_;
    for (uint32_t i = 0; i < cases_.probes.size(); ++i) {
      const Probe& probe = cases_.probes[i];
      const uint32_t length = static_cast<uint32_t>(probe.prompt.size()), cut = length / 2;
      PlanRow row{SequenceSlot(i), first ? cut : length - cut, first ? 0 : cut};
      row.tokens.assign(probe.prompt.begin() + row.position,
                        probe.prompt.begin() + row.position + row.query_len);
      row.output = first ? RowOutput::kNone : RowOutput::kToken;
      if (first) {
        plan.new_sequences.push_back(NewSequenceOf(i));
        const uint32_t total = length + static_cast<uint32_t>(probe.greedy.size()) + 60;
        for (uint32_t p = 0; p * kPageTokens < std::min(total, kLimits.max_model_len); ++p) {
          row.pages.push_back(PageId(next_page++));
        }
      }
      plan.rows.push_back(std::move(row));
    }
    return plan;
  }
  NewSequence NewSequenceOf(uint32_t i) const {
    const Probe& probe = cases_.probes[i];
    NewSequence s;
    s.slot = SequenceSlot(i);
    s.num_prompt_tokens = s.num_tokens = static_cast<uint32_t>(probe.prompt.size());
    s.sampling.temperature = 0;
    if (!probe.adapter.empty()) {
      s.spans = {{0, 0, {{Sha256Of(cases_.blobs.at(probe.adapter)), 1.0f}}}};
    }
    return s;
  }
  StepPlan Decode(uint32_t output) const {
    StepPlan plan;
    plan.eager = eager_;
    for (uint32_t i = 0; i < cases_.probes.size(); ++i) {
      plan.rows.push_back(
          {SequenceSlot(i), 1, static_cast<uint32_t>(cases_.probes[i].prompt.size()) + output});
    }
    return plan;
  }

  ScriptedStream& stream_;
  const Cases& cases_;
  const int tp_size_;
  const Epoch epoch_;
  uint64_t commands_ = 0;
  std::set<uint64_t> loading_;  // their ids
  bool eager_ = false;
};

}  // namespace rootstock
