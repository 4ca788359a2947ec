// An engine with a registry, toy groups and recording sinks, on one test thread.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/engine/coordinator_engine.h"
#include "coordinator/engine/testing/fake_group.h"
#include "coordinator/engine/testing/manual_executor.h"
#include "gtest/gtest.h"

namespace rootstock {

// A request's frontend and its client: what they heard. Calls come on one thread at a time.
struct Heard : GenerateSink, TokenSink {
  void OnAccepted(const GenerateAccepted& a) override { accepted = a; }
  void OnPromptLogprobs(std::vector<TokenLogprob>) override {}
  void OnDelta(GenerateDelta) override {}
  void OnDone(const absl::Status&, const GenerateUsage&) override {}
  void Push(TokenBatch batch) override;
  void Close(const absl::Status& s) override;

  GenerateAccepted accepted;
  std::map<int, std::vector<int32_t>> tokens;
  std::map<int, FinishReason> finish;
  std::map<int, std::string> stop_match;
  std::vector<TokenLogprob> prompt_logprobs;
  size_t logprobs = 0;
  std::atomic<bool> done = false;  // the rest may be read then
  absl::Status status;
  int closes = 0;
  bool pushed_after_end = false;
  std::function<void(int)> on_stop;
  size_t stop_string_after = SIZE_MAX;   // tokens of a sample; those after it are not delivered
  std::shared_ptr<GenerateSink> client;  // as the engine sees it, until the end
  TextPort::Open opened;
};

struct WorldOptions {
  uint32_t seed = 1;
  GroupLimits limits = {.max_model_len = 256, .max_num_seqs = 8, .max_num_batched_tokens = 32};
  uint32_t max_queued = 1000;
  absl::Duration step_timeout = absl::InfiniteDuration();
  bool in_memory = false;  // the registry's files, where the system has such a place
  bool threads = false;    // real threads and time instead of the executor
  PoolOptions pool;
  std::function<void(FakeGroup&)> prepare;  // each group before its first attach
  std::function<absl::StatusOr<AdapterWays>(const AdapterContent&)> ways;
  AdapterLoader loader;  // empty: the directory's name is the content
};

class World {
 public:
  explicit World(WorldOptions options = {});
  ~World();

  // Registers content `text` under the name.
  Digest Add(const std::string& name, const std::string& text = "");
  // Takes the name away and its content off the groups, as `adapter rm` does.
  void Unregister(const std::string& name);
  struct Sent {
    RequestNumber number;
    std::shared_ptr<Heard> heard;
    GenerateRequest request;
  };
  absl::StatusOr<Sent> TryGenerate(GenerateRequest request);
  Sent Generate(GenerateRequest request);
  // A request for `tokens` of output that only length ends.
  static GenerateRequest Ask(const std::string& model, std::vector<int32_t> prompt, int max_tokens);

  FakeGroup& AddGroup(const std::string& name, uint32_t pages = 64, uint32_t page_tokens = 4);
  void Run() { executor.RunAll(); }
  // Everything that can happen without time passing.
  void Settle();
  // Expects an undisturbed run's tokens, OK, and one Close.
  void ExpectRight(const Sent& sent);
  std::vector<int32_t> ExpectedTokens(const Sent& sent, uint32_t sample);
  // All groups: no contract broken; all pages back but the residents'.
  void ExpectClean();
  GroupStatus StatusOf(const std::string& group);
  // Value of the one series whose name and labels end so.
  double Metric(const std::string& series) const;
  void RestartEngine();
  // Of the next engine.
  void SetWays(decltype(WorldOptions::ways) ways) { options_.ways = std::move(ways); }

  ManualExecutor executor;
  std::filesystem::path directory;
  Metrics metrics;
  std::shared_ptr<const EngineMetrics> engine_metrics;
  std::unique_ptr<Registry> registry;
  std::unique_ptr<CoordinatorEngine> engine;
  std::map<std::string, std::unique_ptr<FakeGroup>> groups;

 private:
  void OpenRegistry();
  void MakeEngine();
  WorldOptions options_;
  std::atomic<uint64_t> next_random_ = 1;
};

// kInternal for an error without details.
Reason ReasonOf(const absl::Status& status);

}  // namespace rootstock
