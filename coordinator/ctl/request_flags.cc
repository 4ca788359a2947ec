#include "coordinator/ctl/request_flags.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/flags/flag_value.h"
#include "coordinator/ctl/text.h"

namespace rootstock {
namespace {

using Request = v1::GenerateRequest;
using Texts = std::vector<std::string>;

constexpr size_t kShownBytes = 40;

template <typename T>
absl::Status NotANumber(const std::string& name, const std::string& text) {
  if (std::is_floating_point_v<T>) {
    return InvalidField(Reason::kInvalidArgument, name, text, "not a number");
  }
  return InvalidField(Reason::kInvalidArgument, name, text,
                      absl::StrCat("must be a whole number from ", std::numeric_limits<T>::min(),
                                   " to ", std::numeric_limits<T>::max()));
}

template <typename T>
bool Parse(const std::string& text, T* out) {
  if constexpr (std::is_floating_point_v<T>) {
    return absl::SimpleAtof(text, out);
  } else {
    return absl::SimpleAtoi(text, out);
  }
}

FlagSpec Make(std::string name, FlagSetter::Kind kind, std::string placeholder, std::string help,
              std::function<absl::Status(const Texts&)> set) {
  return {.name = std::move(name),
          .target = FlagSetter{kind, std::move(set)},
          .help = std::move(help),
          .placeholder = std::move(placeholder)};
}

// Flags of one request; each writes into it when it is given.
class RequestTable {
 public:
  explicit RequestTable(Request& request) : request_(request) {
    if (request.prompt_case() != Request::PROMPT_NOT_SET) *prompt_given_ = "on the command line";
  }

  template <typename T>
  void Number(const char* name, const char* help, void (*apply)(T, Request&)) {
    rows_.push_back(Make(name, FlagSetter::Kind::kText, "N", help,
                         [name, apply, &request = request_](const Texts& texts) {
                           T value{};
                           if (!Parse(texts[0], &value)) return NotANumber<T>(name, texts[0]);
                           apply(value, request);
                           return absl::OkStatus();
                         }));
  }
  void Switch(const char* name, const char* help, void (*apply)(bool, Request&)) {
    rows_.push_back(Make(name, FlagSetter::Kind::kSwitch, "", help,
                         [apply, &request = request_](const Texts& texts) {
                           apply(texts[0] == "true", request);
                           return absl::OkStatus();
                         }));
  }
  void Text(const char* name, const char* placeholder, const char* help,
            void (*apply)(const std::string&, Request&)) {
    rows_.push_back(Make(name, FlagSetter::Kind::kText, placeholder, help,
                         [apply, &request = request_](const Texts& texts) {
                           apply(texts[0], request);
                           return absl::OkStatus();
                         }));
  }
  void Other(const char* name, FlagSetter::Kind kind, const char* placeholder, const char* help,
             absl::Status (*apply)(const Texts&, Request&)) {
    rows_.push_back(
        Make(name, kind, placeholder, help,
             [apply, &request = request_](const Texts& texts) { return apply(texts, request); }));
  }
  // One of those that give the prompt: a second one is an error.
  void Prompt(const char* name, FlagSetter::Kind kind, const char* placeholder, const char* help,
              absl::Status (*apply)(const Texts&, Request&)) {
    rows_.push_back(
        Make(name, kind, placeholder, help,
             [name, apply, given = prompt_given_, &request = request_](const Texts& texts) {
               const std::string text = texts.empty() ? "" : texts[0];
               if (!given->empty()) {
                 return InvalidField(
                     Reason::kInvalidArgument, name, text,
                     absl::StrCat("the prompt is given already, ", *given,
                                  ": one of TEXT, --prompt, --prompt-file, --token-ids"));
               }
               *given = absl::StrCat("as ", name, "=", text.substr(0, kShownBytes));
               return apply(texts, request);
             }));
  }
  std::vector<FlagSpec> Take() { return std::move(rows_); }

 private:
  Request& request_;
  const std::shared_ptr<std::string> prompt_given_ = std::make_shared<std::string>();
  std::vector<FlagSpec> rows_;
};

absl::Status SetTokenIds(const Texts& texts, Request& request) {
  ASSIGN_OR_RETURN(const auto ids, ParseIds("token-ids", texts));
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status SetStopTokenIds(const Texts& texts, Request& request) {
  ASSIGN_OR_RETURN(const auto ids, ParseIds("stop-token-id", texts));
  request.mutable_stop_token_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status SetStop(const Texts& texts, Request& request) {
  request.mutable_stop()->Assign(texts.begin(), texts.end());
  return absl::OkStatus();
}

absl::Status SetLogitBias(const Texts& texts, Request& request) {
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    int32_t id = 0;
    float value = 0;
    if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &value)) {
      return InvalidField(Reason::kInvalidArgument, "logit-bias", text, "not ID=VALUE");
    }
    (*request.mutable_sampling()->mutable_logit_bias())[id] = value;
  }
  return absl::OkStatus();
}

absl::Status SetPrompt(const Texts& texts, Request& request) {
  request.set_text(texts[0]);
  return absl::OkStatus();
}

absl::Status SetPromptFile(const Texts& texts, Request& request) {
  ASSIGN_OR_RETURN(std::string text, ReadTextFile("prompt-file", texts[0]));
  request.set_text(std::move(text));
  return absl::OkStatus();
}

void AddPrompt(RequestTable& t) {
  using Kind = FlagSetter::Kind;
  t.Text("model", "NAME", "the base's name or an adapter's",
         [](const std::string& v, Request& r) { r.set_model(v); });
  t.Prompt("prompt", Kind::kText, "TEXT", "the prompt; also as the argument", SetPrompt);
  t.Prompt("prompt-file", Kind::kText, "FILE", "the prompt, read from a file", SetPromptFile);
  t.Prompt("token-ids", Kind::kList, "1,2,3", "the prompt as token ids", SetTokenIds);
  t.Switch("add-special-tokens", "begin the prompt as the model wants (true)",
           [](bool v, Request& r) { r.set_add_special_tokens(v); });
  t.Switch("parse-special", "special tokens in the prompt's text become ids",
           [](bool v, Request& r) { r.set_parse_special(v); });
  t.Text("request-id", "ID", "for logs",
         [](const std::string& v, Request& r) { r.set_request_id(v); });
}

void AddSampling(RequestTable& t) {
  using Kind = FlagSetter::Kind;
  t.Number<float>("temperature", "0 is greedy",
                  [](float v, Request& r) { r.mutable_sampling()->set_temperature(v); });
  t.Number<float>("top-p", "nucleus",
                  [](float v, Request& r) { r.mutable_sampling()->set_top_p(v); });
  t.Number<int32_t>("top-k", "likeliest K only; 0 or -1 for all",
                    [](int32_t v, Request& r) { r.mutable_sampling()->set_top_k(v); });
  t.Number<float>("min-p", "of the likeliest's probability",
                  [](float v, Request& r) { r.mutable_sampling()->set_min_p(v); });
  t.Number<float>("presence-penalty", "-2 to 2",
                  [](float v, Request& r) { r.mutable_sampling()->set_presence_penalty(v); });
  t.Number<float>("frequency-penalty", "-2 to 2",
                  [](float v, Request& r) { r.mutable_sampling()->set_frequency_penalty(v); });
  t.Number<float>("repetition-penalty", "over 0",
                  [](float v, Request& r) { r.mutable_sampling()->set_repetition_penalty(v); });
  t.Other("logit-bias", Kind::kList, "ID=VALUE", "added to a token's logit", SetLogitBias);
  t.Number<uint64_t>("seed", "same seed, same answer",
                     [](uint64_t v, Request& r) { r.mutable_sampling()->set_seed(v); });
}

void AddAnswer(RequestTable& t) {
  using Kind = FlagSetter::Kind;
  t.Number<int32_t>("max-tokens", "output tokens at most",
                    [](int32_t v, Request& r) { r.set_max_tokens(v); });
  t.Number<int32_t>("min-tokens", "no end before that many",
                    [](int32_t v, Request& r) { r.set_min_tokens(v); });
  t.Number<int32_t>("n", "samples", [](int32_t v, Request& r) { r.set_n(v); });
  t.Other("stop", Kind::kList, "TEXT", "ends the answer", SetStop);
  t.Other("stop-token-id", Kind::kList, "ID", "ends the answer", SetStopTokenIds);
  t.Switch("ignore-eos", "go on after the model's end token",
           [](bool v, Request& r) { r.set_ignore_eos(v); });
  t.Switch("include-stop", "show what ended the answer",
           [](bool v, Request& r) { r.set_include_stop_in_output(v); });
  t.Number<int32_t>("logprobs", "top entries a token",
                    [](int32_t v, Request& r) { r.set_logprobs(v); });
  t.Number<int32_t>("prompt-logprobs", "same for the prompt",
                    [](int32_t v, Request& r) { r.set_prompt_logprobs(v); });
  t.Switch("skip-special-tokens", "leave them out of the answer (true)",
           [](bool v, Request& r) { r.set_skip_special_tokens(v); });
  t.Switch("echo-token-ids", "token ids beside the text",
           [](bool v, Request& r) { r.set_echo_token_ids(v); });
}

// JSON values as the texts that a flag would give.
absl::StatusOr<Texts> TextsOf(const std::string& key, const nlohmann::json& value) {
  const auto text = [](const nlohmann::json& item) {
    return item.is_string() ? item.get<std::string>() : item.dump();
  };
  if (value.is_object() || value.is_null()) {
    return InvalidField(Reason::kInvalidArgument, key, value.dump(), "not a value or a list");
  }
  if (!value.is_array()) return Texts{text(value)};
  Texts texts;
  std::transform(value.begin(), value.end(), std::back_inserter(texts), text);
  return texts;
}

absl::Status ApplyKey(const std::string& key, const nlohmann::json& value,
                      const std::vector<FlagSpec>& flags, BatchLine& line) {
  if (key == "label" && value.is_string()) {
    line.label = value.get<std::string>();
    return absl::OkStatus();
  }
  if (key == "tenant" && value.is_string()) {
    line.request.set_tenant(value.get<std::string>());
    return absl::OkStatus();
  }
  if (key == "delay-ms" && value.is_number()) {
    line.delay_ms = value.get<int64_t>();
    return absl::OkStatus();
  }
  for (const FlagSpec& flag : flags) {
    if (flag.name != key) continue;
    ASSIGN_OR_RETURN(const Texts texts, TextsOf(key, value));
    if (!IsList(flag) && texts.size() != 1) {
      return InvalidField(Reason::kInvalidArgument, key, value.dump(), "takes one value");
    }
    return SetFlag(flag, texts);
  }
  return InvalidField(Reason::kUnknownField, key, value.dump(), "unknown key");
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& name,
                                              const std::vector<std::string>& texts) {
  std::vector<int32_t> ids;
  for (const std::string& text : texts) {
    for (const auto part : absl::StrSplit(text, ',')) {
      const std::vector<std::string> items = absl::StrSplit(part, ' ', absl::SkipEmpty());
      if (items.empty()) {
        return InvalidField(Reason::kInvalidArgument, name, text, "has an empty item");
      }
      for (const std::string& item : items) {
        int32_t id = 0;
        if (!absl::SimpleAtoi(item, &id)) return NotANumber<int32_t>(name, item);
        ids.push_back(id);
      }
    }
  }
  return ids;
}

std::vector<FlagSpec> RequestFlags(v1::GenerateRequest& request) {
  RequestTable table(request);
  AddPrompt(table);
  AddSampling(table);
  AddAnswer(table);
  return table.Take();
}

absl::StatusOr<BatchLine> ParseBatchLine(const std::string& text,
                                         const v1::GenerateRequest& defaults) {
  const StrictJsonLimits limits = {.max_bytes = text.size(), .invalid = Reason::kInvalidArgument};
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseStrictJson(text, "line", limits));
  if (!object.is_object()) {
    return InvalidField(Reason::kInvalidArgument, "line", text, "not a JSON object");
  }
  BatchLine line{.request = defaults};
  const std::vector<FlagSpec> flags = RequestFlags(line.request);
  std::set<std::string> given;
  for (const auto& [key, value] : object.items()) {
    const std::string name = absl::StrReplaceAll(key, {{"_", "-"}});
    if (!given.insert(name).second) {
      return InvalidField(Reason::kDuplicate, "line", key, "key is given twice, also as " + name);
    }
    RETURN_IF_ERROR(ApplyKey(name, value, flags, line));
  }
  if (line.label.empty()) line.label = line.request.model();
  return line;
}

}  // namespace rootstock
