#include "coordinator/ctl/client.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/host_port.h"
#include "common/wire/error_trailer.h"
#include "rootstock/v1/types.pb.h"

namespace rootstock {
namespace {

// gRPC 1.51 takes a connect in progress for a failed one when an allocation between the call and
// its look at errno sets errno, as glibc's first one of a thread does where /sys is not mounted.
constexpr int kReconnectMs = 100;                     // until the second attempt; gRPC's least
constexpr std::chrono::milliseconds kRetryTime{500};  // after the first: two more
constexpr std::chrono::seconds kConnectTime{1};

const char* CodeName(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return code >= 0 && code <= grpc::StatusCode::UNAUTHENTICATED ? kNames[code] : "UNKNOWN";
}

// Until there is a connection or no hope for one. What is wrong the call then says.
void TryToConnect(grpc::Channel& channel, const ClientOptions& options) {
  using Clock = std::chrono::system_clock;
  const auto start = Clock::now();
  auto until = start + kConnectTime;
  if (options.timeout_seconds > 0 && options.timeout_seconds < 1) {
    until = start + std::chrono::microseconds(static_cast<int64_t>(options.timeout_seconds * 1e6));
  }
  auto state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    // gRPC tries again by itself; the channel stays in this state until an attempt succeeds.
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) until = std::min(until, Clock::now() + kRetryTime);
    if (!channel.WaitForStateChange(state, until)) return;
    state = channel.GetState(/*try_to_connect=*/true);
  }
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  if (IsHostPort(address, /*lowest_port=*/1)) return absl::OkStatus();
  return InvalidField(Reason::kInvalidArgument, "address", address, "must be HOST:PORT");
}

std::shared_ptr<grpc::Channel> Connect(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // logprobs of a whole vocabulary
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  auto channel =
      grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  TryToConnect(*channel, options);
  return channel;
}

void SetDeadline(const ClientOptions& options, grpc::ClientContext& context) {
  if (options.timeout_seconds <= 0) return;
  const auto microseconds = static_cast<int64_t>(options.timeout_seconds * 1e6);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(microseconds));
}

nlohmann::json ErrorJson(const grpc::Status& status, const grpc::ClientContext& context) {
  const v1::ErrorDetail detail = DetailOf(context);
  return {{"code", CodeName(status.error_code())},
          {"reason", detail.reason()},
          {"field", detail.field()},
          {"value", detail.value()},
          {"message", status.error_message()},
          {"retry_after_ms", detail.retry_after_ms()}};
}

std::string ErrorLine(const grpc::Status& status, const grpc::ClientContext& context) {
  const v1::ErrorDetail detail = DetailOf(context);
  std::string line = absl::StrCat(CodeName(status.error_code()), detail.reason().empty() ? "" : " ",
                                  detail.reason(), ": ", status.error_message());
  if (detail.retry_after_ms() > 0) {
    absl::StrAppend(&line, " (try again in ", detail.retry_after_ms(), " ms)");
  }
  return line;
}

int ExitCodeOf(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return kExitOk;
  const bool unreachable =
      status.error_code() == grpc::StatusCode::UNAVAILABLE && DetailOf(context).reason().empty();
  return unreachable ? kExitUnreachable : kExitFailed;
}

int Fail(const ClientOptions& options, const grpc::Status& status,
         const grpc::ClientContext& context) {
  std::fprintf(stderr, "loractl: %s\n", ErrorLine(status, context).c_str());
  if (options.json) {
    std::printf("%s\n", nlohmann::json{{"error", ErrorJson(status, context)}}.dump().c_str());
  }
  return ExitCodeOf(status, context);
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  std::fputs(text.c_str(), stdout);
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] + 2 - row[i].size(), ' ');
    }
    std::printf("%s\n", line.c_str());
  }
}

}  // namespace rootstock
