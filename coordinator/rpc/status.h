// How services' calls are answered from a pool.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
}  // namespace grpc

namespace rootstock {

// RESOURCE_EXHAUSTED / queue_full: a WorkPool took no more.
absl::Status TooBusy(const WorkPool& pool);

// Answers a unary call with what `work` returns, on the pool.
grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context, WorkPool* pool,
                                   std::function<absl::Status()> work);

}  // namespace rootstock
