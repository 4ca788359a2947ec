// Leveled logging to stderr; the library behind it stays out of this header.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace rootstock {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Prefix is shown on each line, e.g. "worker[1/2]". Call once, before threads start.
void InitLogging(const std::string& prefix, LogLevel level);
// "debug", "info", "warning" or "error"; anything else is kInfo.
LogLevel ParseLogLevel(const std::string& name);
// Thread-safe.
void LogLine(LogLevel level, const std::string& text);

template <typename... Args>
void LogDebug(const Args&... args) {
  LogLine(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(const Args&... args) {
  LogLine(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  LogLine(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  LogLine(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace rootstock
