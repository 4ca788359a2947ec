// Between token ids and what a client reads: tokenization, incremental text, stop strings.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/request/generate.h"

namespace rootstock {

class Tokenizer;
class FrontendThread;

// What the frontend must know of an admitted request.
struct OpenRequest {
  int n = 1;                           // samples
  std::vector<int32_t> prompt_tokens;  // the context in which output becomes text
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  uint32_t min_tokens = 0;       // stop strings count from this many output tokens on
  bool prompt_logprobs = false;  // hold the first delta back until they have come
};

// Called on a frontend thread, at most once a sample, when a stop string ended it: the engine may
// stop computing it. Must not block.
using StopCallback = std::function<void(int sample)>;

// Text in, text out, for one served model. A request is bound to one of the threads, which makes
// all calls of its GenerateSink. Thread-safe.
class Frontend {
 public:
  // `model` is named in errors. `tokenizer` may be null: the model then serves token ids only.
  Frontend(std::string model, std::shared_ptr<const Tokenizer> tokenizer, int threads);
  ~Frontend();  // after what was pushed is delivered

  // FAILED_PRECONDITION / no_tokenizer without a tokenizer; the tokenizer's own errors.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              bool parse_special) const;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  // One token's text for logprobs; empty without a tokenizer.
  std::string TokenText(int32_t id) const;
  bool has_tokenizer() const { return tokenizer_ != nullptr; }

  // Stop strings: none empty, at most 64 of at most 1024 bytes, none without a tokenizer.
  absl::Status CheckStop(const std::vector<std::string>& stop) const;

  // The sink for the request's tokens, from any thread, after `sink` has had OnAccepted.
  // * A batch's tokens and logprobs are in output order; a token that ended the sample (eos, stop
  //   id) is its last one: counted and delivered as an id, as text only with
  //   include_stop_in_output.
  // * prompt_logprobs come in prompt order from sample 0; more than the prompt has are ignored
  //   (a replay).
  // * A sample ends by its batch's finish_reason or by a stop string. Batches for it that follow
  //   are dropped: neither delivered nor counted.
  // * Close(status) is OnDone(status, usage).
  std::shared_ptr<TokenSink> Open(OpenRequest request, std::shared_ptr<GenerateSink> sink,
                                  StopCallback on_stop);

 private:
  absl::Status NeedTokenizer(const std::string& field, const std::string& value) const;

  const std::string model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::shared_ptr<FrontendThread>> threads_;
  std::atomic<uint32_t> next_ = 0;
};

}  // namespace rootstock
