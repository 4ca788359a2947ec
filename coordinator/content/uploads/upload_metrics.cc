#include "coordinator/content/uploads/upload_metrics.h"

#include "common/base/status.h"

namespace rootstock {

UploadMetrics::UploadMetrics(Metrics& metrics) {
  const auto uploads = metrics.MakeCounter(
      "adapter_upload_total", "Uploads that registered, calls of uploads refused or failed",
      {{"result", {"ok", "rejected", "error"}}});
  ok_ = uploads.At("ok");
  rejected_ = uploads.At("rejected");
  error_ = uploads.At("error");
}

void UploadMetrics::Ended(const absl::Status& status, bool is_finish) const {
  const auto detail = GetErrorDetail(status);
  switch (status.code()) {
    case absl::StatusCode::kOk:
      if (is_finish) ok_.Add();
      return;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDataLoss:
      return rejected_.Add();
    case absl::StatusCode::kResourceExhausted:
      return detail && detail->reason == Reason::kQuota ? rejected_.Add() : error_.Add();
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kFailedPrecondition:
      return;
    default:
      return error_.Add();
  }
}

}  // namespace rootstock
