// Between a request's text and its client: counts what is delivered.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/task_queue.h"
#include "coordinator/request/generate.h"

namespace rootstock {

// Tokens are counted here and not where they come from the group: those after a stop string that is
// found late reach nobody. A GenerateSink: one thread at a time.
class CountedSink : public GenerateSink {
 public:
  CountedSink(std::shared_ptr<GenerateSink> client, int samples, Clock clock,
              std::shared_ptr<const EngineMetrics> metrics);

  void OnAccepted(const GenerateAccepted& accepted) override;
  void OnPromptLogprobs(std::vector<TokenLogprob> logprobs) override;
  void OnDelta(GenerateDelta delta) override;
  void OnDone(const absl::Status& status, const GenerateUsage& usage) override;

  const std::shared_ptr<GenerateSink>& client() const { return client_; }

 private:
  struct Sample {
    size_t tokens = 0;
    absl::Time last_at;
  };

  const std::shared_ptr<GenerateSink> client_;
  const Clock clock_;
  const std::shared_ptr<const EngineMetrics> metrics_;
  std::vector<Sample> samples_;
  absl::Time first_at_ = absl::InfiniteFuture();
};

}  // namespace rootstock
