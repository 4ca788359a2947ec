// What can be set of a generate request: one table for flags and for the keys of a batch file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags/flags.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// Token ids as a list, or joined by commas or by blanks as loractl prints them. Errors name `name`.
absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& name,
                                              const std::vector<std::string>& texts);

// Rows that write into `request`, which is borrowed. Values are the server's to judge; only what is
// no number, or no file, fails, and a second prompt.
std::vector<FlagSpec> RequestFlags(v1::GenerateRequest& request);

// A line of a batch file.
struct BatchLine {
  v1::GenerateRequest request;
  std::string label;     // key "label"; default: the model, which may be empty too
  int64_t delay_ms = 0;  // key "delay_ms": sent that long after the start
};
// `line` is a JSON object whose keys are flags of a request, or "tenant"; it starts from
// `defaults`. Unknown keys are errors, and a prompt beside one of the defaults.
absl::StatusOr<BatchLine> ParseBatchLine(const std::string& line,
                                         const v1::GenerateRequest& defaults);

}  // namespace rootstock
