#include "coordinator/frontend/request_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rootstock {

SampleText::SampleText(const OpenRequest& request, const Tokenizer* tokenizer)
    : min_tokens_(request.min_tokens),
      include_stop_(request.include_stop_in_output),
      matcher_(request.stop, request.include_stop_in_output) {
  if (tokenizer != nullptr) {
    detokenizer_ = std::make_unique<IncrementalDetokenizer>(*tokenizer, request.prompt_tokens,
                                                            request.skip_special_tokens);
  }
}

GenerateDelta SampleText::Add(TokenBatch batch) {
  GenerateDelta delta{.index = batch.index};
  const bool by_token = !batch.stop_match.empty() && !include_stop_;
  for (size_t i = 0; i < batch.tokens.size() && !ended_; ++i) {
    const bool last = i + 1 == batch.tokens.size();
    AddToken(batch.tokens[i], !(last && by_token), delta);
    if (i < batch.logprobs.size()) delta.logprobs.push_back(std::move(batch.logprobs[i]));
  }
  if (ended_ || batch.finish_reason == FinishReason::kNone) return delta;
  delta.finish_reason = batch.finish_reason;
  delta.stop_match = std::move(batch.stop_match);
  Finish(delta);
  return delta;
}

void SampleText::AddToken(int32_t token, bool as_text, GenerateDelta& delta) {
  ++num_tokens_;
  delta.token_ids.push_back(token);
  if (detokenizer_ == nullptr || !as_text) return;
  const std::string text = detokenizer_->Append(token);
  const bool may_stop = num_tokens_ >= static_cast<int64_t>(min_tokens_);
  Show(may_stop ? matcher_.Add(text) : matcher_.AddUnmatched(text), delta);
}

// The end came by token: what was held back may still hold a stop string.
void SampleText::Finish(GenerateDelta& delta) {
  ended_ = true;
  if (detokenizer_ == nullptr) return;
  Show(matcher_.Add(detokenizer_->Flush()), delta);
  delta.text += matcher_.Flush();
}

void SampleText::Show(StopMatcher::Shown shown, GenerateDelta& delta) {
  delta.text += shown.text;
  if (!shown.match.has_value()) return;
  // The engine hears of it only when it has not ended the sample itself.
  by_string_ = !ended_;
  ended_ = true;
  delta.finish_reason = FinishReason::kStop;
  delta.stop_match = *std::move(shown.match);
}

RequestStream::RequestStream(const OpenRequest& request, std::shared_ptr<const Tokenizer> tokenizer,
                             std::shared_ptr<GenerateSink> sink, StopCallback on_stop)
    : tokenizer_(std::move(tokenizer)),
      sink_(std::move(sink)),
      on_stop_(std::move(on_stop)),
      num_prompt_tokens_(static_cast<int32_t>(request.prompt_tokens.size())),
      wants_prompt_logprobs_(request.prompt_logprobs) {
  for (int i = 0; i < request.n; ++i) samples_.emplace_back(request, tokenizer_.get());
}

void RequestStream::Apply(TokenBatch batch) {
  const auto index = static_cast<size_t>(batch.index);
  if (closed_ || index >= samples_.size()) return;
  if (wants_prompt_logprobs_ && index == 0) TakePromptLogprobs(std::move(batch.prompt_logprobs));
  SampleText& sample = samples_[index];
  if (sample.ended() || (batch.tokens.empty() && batch.finish_reason == FinishReason::kNone)) {
    return;
  }
  GenerateDelta delta = sample.Add(std::move(batch));
  if (sample.ended_by_stop_string()) on_stop_(static_cast<int>(index));
  Deliver(std::move(delta));
}

void RequestStream::TakePromptLogprobs(std::vector<TokenLogprob> logprobs) {
  std::ranges::move(logprobs, std::back_inserter(prompt_logprobs_));
  const size_t wanted = static_cast<size_t>(std::max(num_prompt_tokens_ - 1, 0));
  if (prompt_logprobs_.size() < wanted) return;
  prompt_logprobs_.resize(wanted);
  wants_prompt_logprobs_ = false;
  sink_->OnPromptLogprobs(std::move(prompt_logprobs_));
  for (GenerateDelta& delta : early_) sink_->OnDelta(std::move(delta));
  early_.clear();
}

void RequestStream::Deliver(GenerateDelta delta) {
  if (wants_prompt_logprobs_) {
    early_.push_back(std::move(delta));
  } else {
    sink_->OnDelta(std::move(delta));
  }
}

void RequestStream::Close(const absl::Status& status) {
  if (closed_) return;
  closed_ = true;
  GenerateUsage usage{.prompt_tokens = num_prompt_tokens_};
  for (const SampleText& sample : samples_) usage.completion_tokens += sample.num_tokens();
  sink_->OnDone(status, usage);
}

}  // namespace rootstock
