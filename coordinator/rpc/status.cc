#include "coordinator/rpc/status.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "rootstock/v1/types.pb.h"

namespace rootstock {
namespace {

constexpr char kTrailer[] = "rootstock-error-detail-bin";
constexpr int64_t kRetryMs = 1000;

bool ShallRetry(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorDetail wire;
  if (const auto detail = GetErrorDetail(status); detail.has_value()) {
    wire.set_reason(ReasonName(detail->reason));
    wire.set_field(detail->field);
    wire.set_value(detail->value);
  } else {
    wire.set_reason(ReasonName(Reason::kInternal));
  }
  const int64_t otherwise = ShallRetry(status.code()) ? kRetryMs : 0;
  wire.set_retry_after_ms(GetRetryAfterMs(status).value_or(otherwise));
  context->AddTrailingMetadata(kTrailer, wire.SerializeAsString());
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

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
