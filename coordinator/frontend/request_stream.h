// One request's way from token batches to deltas.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/frontend/frontend.h"
#include "coordinator/frontend/stop_matcher.h"
#include "coordinator/request/generate.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

// One sample's text. One frontend thread only.
class SampleText {
 public:
  // `tokenizer` may be null: there is no text then.
  SampleText(const OpenRequest& request, const Tokenizer* tokenizer);

  // Applies the batch: what to deliver now. Nothing is left of batches after the end.
  GenerateDelta Add(TokenBatch batch);
  bool ended() const { return ended_; }
  bool ended_by_stop_string() const { return by_string_; }
  int32_t num_tokens() const { return num_tokens_; }

 private:
  void AddToken(int32_t token, bool as_text, GenerateDelta& delta);
  void Finish(GenerateDelta& delta);
  void Show(StopMatcher::Shown shown, GenerateDelta& delta);

  const uint32_t min_tokens_;
  const bool include_stop_;
  std::unique_ptr<IncrementalDetokenizer> detokenizer_;
  StopMatcher matcher_;
  int32_t num_tokens_ = 0;
  bool ended_ = false;
  bool by_string_ = false;
};

// Applied by one frontend thread, in the order of the pushes.
class RequestStream {
 public:
  RequestStream(const OpenRequest& request, std::shared_ptr<const Tokenizer> tokenizer,
                std::shared_ptr<GenerateSink> sink, StopCallback on_stop);
  void Apply(TokenBatch batch);
  void Close(const absl::Status& status);

 private:
  void TakePromptLogprobs(std::vector<TokenLogprob> logprobs);
  void Deliver(GenerateDelta delta);

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<GenerateSink> sink_;
  const StopCallback on_stop_;
  const int32_t num_prompt_tokens_;
  bool wants_prompt_logprobs_;  // and has not had them
  std::vector<TokenLogprob> prompt_logprobs_;
  std::vector<GenerateDelta> early_;  // before the prompt's logprobs are complete
  std::vector<SampleText> samples_;
  bool closed_ = false;
};

}  // namespace rootstock
