#include "common/wire/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace rootstock {
namespace {

// One event is one line.
std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

const char* BaseName(const char* file) {
  const std::string_view path(file == nullptr ? "" : file);
  const size_t slash = path.rfind('/');
  return path.data() + (slash == std::string_view::npos ? 0 : slash + 1);
}

void LogGrpc(gpr_log_func_args* args) {
  const bool assertion = absl::StartsWith(args->message, "assertion failed");
  const LogLevel level = assertion                                  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning
                                                                    : LogLevel::kDebug;
  LogLine(level, absl::StrCat("grpc: ", OneLine(args->message), " (", BaseName(args->file), ":",
                              args->line, ")"));
}

LogLevel LevelOf(google::protobuf::LogLevel level) {
  switch (level) {
    case google::protobuf::LOGLEVEL_FATAL:
      return LogLevel::kError;
    case google::protobuf::LOGLEVEL_ERROR:
    case google::protobuf::LOGLEVEL_WARNING:
      return LogLevel::kWarning;
    case google::protobuf::LOGLEVEL_INFO:
      return LogLevel::kDebug;
  }
  return LogLevel::kWarning;
}

void LogProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                 const std::string& message) {
  LogLine(LevelOf(level),
          absl::StrCat("protobuf: ", OneLine(message), " (", BaseName(file), ":", line, ")"));
}

}  // namespace

void RouteLibraryLogs() {
  gpr_set_log_function(LogGrpc);
  google::protobuf::SetLogHandler(LogProtobuf);
}

}  // namespace rootstock
