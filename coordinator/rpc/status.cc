#include "coordinator/rpc/status.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/error_trailer.h"

namespace rootstock {

absl::Status TooBusy(const WorkPool& pool) {
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "request", "",
                   absl::StrCat("too many ", pool.what(), " wait; try again later"));
}

grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context, WorkPool* pool,
                                   std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool taken = pool->Post([context, reactor, work = std::move(work)] {
    reactor->Finish(ToGrpcStatus(work(), context));
  });
  if (!taken) reactor->Finish(ToGrpcStatus(TooBusy(*pool), context));
  return reactor;
}

}  // namespace rootstock
