// What all of loractl's commands share: the channel, errors, tables.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace rootstock {

enum ExitCode { kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitUnreachable = 3 };

struct ClientOptions {
  std::string address = "localhost:50051";
  std::string tenant;
  double timeout_seconds = 0;  // 0: none
  bool json = false;
};

// INVALID_ARGUMENT for what is no HOST:PORT.
absl::Status CheckAddress(const std::string& address);
// Tries a few times, for a second at most, so that one failed attempt fails no call: nothing has
// been sent then. A channel without a connection tells at its first call why.
std::shared_ptr<grpc::Channel> Connect(const ClientOptions& options);
void SetDeadline(const ClientOptions& options, grpc::ClientContext& context);

// {"code", "reason", "field", "value", "message", "retry_after_ms"}
nlohmann::json ErrorJson(const grpc::Status& status, const grpc::ClientContext& context);
// One line for people: "NOT_FOUND unknown_model: model=x: no such model".
std::string ErrorLine(const grpc::Status& status, const grpc::ClientContext& context);
// What a coordinator answered carries an error detail; what never reached one does not.
int ExitCodeOf(const grpc::Status& status, const grpc::ClientContext& context);
// Prints a failed call to stderr, with --json also to stdout.
int Fail(const ClientOptions& options, const grpc::Status& status,
         const grpc::ClientContext& context);

// The message as JSON with proto field names, zeros included.
void PrintJson(const google::protobuf::Message& message);

// Columns as wide as their widest cell; the first row is the head.
void PrintTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace rootstock
