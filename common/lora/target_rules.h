// Which modules a PEFT config adapts, and with which lora_rank and scale: PEFT's own rules.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/peft_config.h"
#include "common/lora/python_pattern.h"

namespace rootstock {

// One key of rank_pattern or alpha_pattern: matches NAME when re.match("(.*\.)?(KEY)$", NAME).
// Plain keys (letters, digits, _, dots escaped or not, perhaps ^) are compared without a regex.
// Not thread-safe.
class PatternKey {
 public:
  static absl::StatusOr<PatternKey> Compile(const std::string& key, const std::string& field);
  absl::StatusOr<bool> Matches(const std::string& name);
  bool is_regex() const { return !regex_.empty(); }
  bool ever_matched() const { return ever_matched_; }

 private:
  std::string plain_;  // '\1' stands for any character
  bool anchored_ = false;
  std::vector<PythonPattern> regex_;  // none or one
  bool ever_matched_ = false;
};

// A module goes by several names (as its file spells it, and as the served model does): a rule
// holds for it when it holds for one of them. Not thread-safe.
class TargetRules {
 public:
  // kInvalidArgument/config_invalid for a pattern that is no regex.
  static absl::StatusOr<TargetRules> Create(const PeftConfig& config);

  // Is it adapted? kInvalidArgument/config_invalid when matching takes too long.
  absl::StatusOr<bool> Targets(std::span<const std::string> names);
  absl::StatusOr<int> LoraRank(std::span<const std::string> names);
  absl::StatusOr<double> Alpha(std::span<const std::string> names);
  // "rank_pattern[KEY] matches nothing", …: for the receipt, after all modules were asked for.
  std::vector<std::string> Unused() const;

 private:
  explicit TargetRules(const PeftConfig& config) : config_(config) {}
  absl::StatusOr<bool> TargetsName(const std::string& name);
  absl::StatusOr<bool> InLayers(const std::string& name);
  // Index of the first key that matches one of the names; -1 for none.
  absl::StatusOr<int> FirstMatch(std::vector<PatternKey>& keys, std::span<const std::string> names);
  absl::Status CheckTime() const;

  PeftConfig config_;
  std::vector<PythonPattern> targets_, excludes_;  // none or one
  std::vector<PythonPattern> layers_;
  std::vector<PatternKey> ranks_, alphas_;
  std::vector<bool> target_used_;
  int64_t deadline_ns_ = 0;  // of this thread's processor time
};

}  // namespace rootstock
