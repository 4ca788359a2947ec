// Our errors as a call's status: DESIGN §10.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>

#include "absl/status/status.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
}  // namespace grpc

namespace rootstock {

// The call's status; adds the trailer "rootstock-error-detail-bin" to its context.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context);

// RESOURCE_EXHAUSTED / queue_full: a WorkPool took no more.
absl::Status TooBusy(const WorkPool& pool);

// Answers a unary call with what `work` returns, on the pool.
grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context, WorkPool* pool,
                                   std::function<absl::Status()> work);

}  // namespace rootstock
