#include "coordinator/engine/counted_sink.h"

#include <algorithm>
#include <utility>

namespace rootstock {

CountedSink::CountedSink(std::shared_ptr<GenerateSink> client, int samples, Clock clock,
                         std::shared_ptr<const EngineMetrics> metrics)
    : client_(std::move(client)),
      clock_(std::move(clock)),
      metrics_(std::move(metrics)),
      samples_(static_cast<size_t>(samples)) {}

void CountedSink::OnAccepted(const GenerateAccepted& accepted) { client_->OnAccepted(accepted); }

void CountedSink::OnPromptLogprobs(std::vector<TokenLogprob> logprobs) {
  client_->OnPromptLogprobs(std::move(logprobs));
}

void CountedSink::OnDelta(GenerateDelta delta) {
  if (!delta.token_ids.empty()) {
    const absl::Time now = clock_();
    first_at_ = std::min(first_at_, now);
    metrics_->output_tokens_total.Add(static_cast<double>(delta.token_ids.size()));
    Sample& sample = samples_[static_cast<size_t>(delta.index)];
    for (size_t i = 0; i < delta.token_ids.size(); ++i) {
      if (sample.tokens++ > 0) metrics_->itl.Observe(absl::ToDoubleSeconds(now - sample.last_at));
      sample.last_at = now;
    }
  }
  client_->OnDelta(std::move(delta));
}

void CountedSink::OnDone(const absl::Status& status, const GenerateUsage& usage) {
  size_t tokens = 0, longest = 0;
  for (const Sample& s : samples_) {
    tokens += s.tokens;
    longest = std::max(longest, s.tokens);
  }
  metrics_->output_tokens.Observe(static_cast<double>(tokens));
  if (longest > 1) {
    metrics_->tpot.Observe(absl::ToDoubleSeconds(clock_() - first_at_) /
                           static_cast<double>(longest - 1));
  }
  client_->OnDone(status, usage);
}

}  // namespace rootstock
