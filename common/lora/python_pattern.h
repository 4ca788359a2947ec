// Python regular expressions as PEFT configs use them, matched against module names.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

// A compiled pattern. Matching costs at most a fixed time: kInvalidArgument/config_invalid beyond
// it. Not thread-safe.
class PythonPattern {
 public:
  // kInvalidArgument/config_invalid naming `field` when Python would not compile it, or when it
  // uses what is read differently here.
  static absl::StatusOr<PythonPattern> Compile(const std::string& pattern,
                                               const std::string& field);
  PythonPattern(PythonPattern&&) noexcept;
  PythonPattern& operator=(PythonPattern&&) noexcept;
  ~PythonPattern();

  absl::StatusOr<bool> FullMatch(const std::string& text);  // re.fullmatch
  // The group called "idx" of re.match; nothing without a match.
  absl::StatusOr<std::optional<std::string>> MatchIndex(const std::string& text);

 private:
  struct Impl;
  explicit PythonPattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The pattern in the syntax of ICU; nothing when the two languages differ on it.
std::optional<std::string> PythonToIcu(const std::string& pattern);

}  // namespace rootstock
