#include "coordinator/ctl/answer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace rootstock {
namespace {

constexpr size_t kLineBytes = 80;

const char* FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_ERROR:
      return "error";
    default:
      return "";
  }
}

nlohmann::json ToJson(const v1::TokenLogprob& in) {
  nlohmann::json out = {{"token_id", in.token_id()},
                        {"logprob", in.logprob()},
                        {"rank", in.rank()},
                        {"text", in.text()},
                        {"top", nlohmann::json::array()}};
  for (const v1::TopLogprob& top : in.top()) {
    out["top"].push_back(
        {{"token_id", top.token_id()}, {"logprob", top.logprob()}, {"text", top.text()}});
  }
  return out;
}

template <typename List>
nlohmann::json ListToJson(const List& list) {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& item : list) out.push_back(ToJson(item));
  return out;
}

}  // namespace

void Answer::Add(const v1::GenerateResponse& message) {
  if (message.has_accepted()) accepted_ = message.accepted();
  if (message.has_prompt_logprobs()) prompt_logprobs_ = message.prompt_logprobs();
  if (message.has_done()) done_ = message.done();
  if (!message.has_delta()) return;
  const v1::Delta& delta = message.delta();
  const auto index = static_cast<size_t>(delta.index());
  if (samples_.size() <= index) samples_.resize(index + 1);
  Sample& sample = samples_[index];
  sample.text += delta.text();
  sample.token_ids.insert(sample.token_ids.end(), delta.token_ids().begin(),
                          delta.token_ids().end());
  sample.logprobs.insert(sample.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  sample.finish_reason = delta.finish_reason();
  sample.stop_match = delta.stop_match();
}

nlohmann::json Answer::ToJson() const {
  nlohmann::json out = {{"model", accepted_.model()},
                        {"resolved_model", accepted_.resolved_model()},
                        {"request_id", accepted_.request_id()},
                        {"adapter_digest", accepted_.adapter_digest()},
                        {"seed", accepted_.seed()},
                        {"usage",
                         {{"prompt_tokens", accepted_.prompt_tokens()},
                          {"completion_tokens", done_.usage().completion_tokens()}}},
                        {"samples", nlohmann::json::array()}};
  for (size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    out["samples"].push_back({{"index", i},
                              {"text", sample.text},
                              {"token_ids", sample.token_ids},
                              {"finish_reason", FinishName(sample.finish_reason)},
                              {"stop_match", sample.stop_match},
                              {"logprobs", ListToJson(sample.logprobs)}});
  }
  if (prompt_logprobs_.tokens_size() > 0) {
    out["prompt_logprobs"] = ListToJson(prompt_logprobs_.tokens());
  }
  return out;
}

std::string ShownText(const v1::Delta& delta) {
  if (!delta.text().empty() || !delta.logprobs().empty()) return delta.text();
  std::string ids;
  for (const int32_t id : delta.token_ids()) absl::StrAppend(&ids, id, " ");
  return ids;
}

void LinePrinter::Print(const std::string& label, const std::string& text, std::string* line) {
  *line += text;
  while (true) {
    size_t cut = line->find('\n');
    if (cut == std::string::npos || cut > kLineBytes) {
      if (line->size() <= kLineBytes) return;
      cut = line->rfind(' ', kLineBytes);
      if (cut == std::string::npos) cut = line->find(' ');
      if (cut == std::string::npos) return;
    }
    PrintLine(label, line->substr(0, cut));
    line->erase(0, cut + 1);
  }
}

void LinePrinter::End(const std::string& label, std::string* line) {
  if (!line->empty()) PrintLine(label, *line);
  line->clear();
}

void LinePrinter::PrintLine(const std::string& label, const std::string& line) {
  const std::string padding(label_width_ - std::min(label_width_, label.size()), ' ');
  std::lock_guard lock(mutex_);
  std::printf("%s%s | %s\n", label.c_str(), padding.c_str(), line.c_str());
  std::fflush(stdout);
}

}  // namespace rootstock
