// What can be set of a generate request: one table for flags and for the keys of a batch file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

enum class SettingKind { kText, kSwitch, kList };

struct RequestSetting {
  std::string name;  // "max-tokens": --max-tokens; in a batch file also max_tokens
  SettingKind kind;
  std::string placeholder;
  std::string help;
  // One text except for lists. Values are the server's to judge; only what is no number fails.
  std::function<absl::Status(const std::vector<std::string>&, v1::GenerateRequest&)> set;
};

const std::vector<RequestSetting>& RequestSettings();

// A line of a batch file.
struct BatchLine {
  v1::GenerateRequest request;
  std::string label;     // key "label"; default: the model
  int64_t delay_ms = 0;  // key "delay_ms": sent that long after the start
};
// `line` is a JSON object whose keys are settings; it starts from `defaults`. Unknown keys are
// errors.
absl::StatusOr<BatchLine> ParseBatchLine(const std::string& line,
                                         const v1::GenerateRequest& defaults);

}  // namespace rootstock
