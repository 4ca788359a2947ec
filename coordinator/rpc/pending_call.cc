#include "coordinator/rpc/pending_call.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "common/base/status.h"
#include "common/wire/error_trailer.h"

namespace rootstock {

std::shared_ptr<PendingCall> PendingCall::Start(grpc::CallbackServerContext* context) {
  std::shared_ptr<PendingCall> call(new PendingCall(context));
  call->self_ = call;
  return call;
}

void PendingCall::Answer(const absl::Status& status, const std::function<void()>& fill) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  if (status.ok() && fill) fill();
  Finish(ToGrpcStatus(status, context_));
}

void PendingCall::OnCancel() {
  Answer(MakeError(absl::StatusCode::kCancelled, Reason::kCancelled, "call", "",
                   "the client did not wait for the end"));
}

void PendingCall::OnDone() { const auto last = std::exchange(self_, nullptr); }

}  // namespace rootstock
