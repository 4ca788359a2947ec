// Our errors as a call's status and its trailer "rootstock-error-detail-bin": DESIGN §10.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc

namespace rootstock {

namespace v1 {
class ErrorDetail;
}  // namespace v1

// The call's status; adds the trailer to its context, which must not have ended.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

// Of a call that has ended; empty where no service of ours has answered.
v1::ErrorDetail DetailOf(const grpc::ClientContext& context);
// Its code, message and detail; not the hint when to try again.
absl::Status FromGrpcStatus(const grpc::Status& status, const grpc::ClientContext& context);

}  // namespace rootstock
