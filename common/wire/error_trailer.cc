#include "common/wire/error_trailer.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"
#include "rootstock/v1/types.pb.h"

namespace rootstock {
namespace {

constexpr char kTrailer[] = "rootstock-error-detail-bin";
constexpr int64_t kRetryMs = 1000;

bool ShallRetry(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context) {
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

v1::ErrorDetail DetailOf(const grpc::ClientContext& context) {
  v1::ErrorDetail detail;
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find(kTrailer); it != trailers.end()) {
    detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
  }
  return detail;
}

absl::Status FromGrpcStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  const v1::ErrorDetail detail = DetailOf(context);
  v1::Outcome outcome;
  outcome.set_code(static_cast<uint32_t>(status.error_code()));
  outcome.set_message(status.error_message());
  outcome.set_reason(detail.reason());
  outcome.set_field(detail.field());
  outcome.set_value(detail.value());
  return StatusFromProto(outcome);
}

}  // namespace rootstock
