// One answer as it comes, for the terminal and as JSON.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// Everything of one answer. One thread at a time.
class Answer {
 public:
  void Add(const v1::GenerateResponse& message);
  // {"model", "resolved_model", "request_id", "adapter_digest", "seed", "usage", "samples":
  // [{"index", "text", "token_ids", "finish_reason", "stop_match", "logprobs"}], "prompt_logprobs"}
  nlohmann::json ToJson() const;

 private:
  struct Sample {
    std::string text;
    std::vector<int32_t> token_ids;
    v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
    std::string stop_match;
    std::vector<v1::TokenLogprob> logprobs;
  };
  v1::Accepted accepted_;
  v1::PromptLogprobs prompt_logprobs_;
  v1::Done done_;
  std::vector<Sample> samples_;
};

// What a delta shows: its text, or its ids where there is no text.
std::string ShownText(const v1::Delta& delta);

// Whole lines of several answers side by side, each behind its label, as they come.
// Thread-safe.
class LinePrinter {
 public:
  explicit LinePrinter(size_t label_width) : label_width_(label_width) {}
  // Prints the lines that `*line` now holds in full and leaves the rest in it.
  void Print(const std::string& label, const std::string& text, std::string* line);
  // Prints what is left.
  void End(const std::string& label, std::string* line);

 private:
  void PrintLine(const std::string& label, const std::string& line);

  const size_t label_width_;
  std::mutex mutex_;
};

}  // namespace rootstock
