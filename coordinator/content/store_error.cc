#include "coordinator/content/store_error.h"

#include "common/base/status.h"

namespace rootstock {
namespace {

struct Words {
  absl::StatusCode code;
  const char* text;
};

Words WordsFor(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kNotFound:
      return {code, "the store does not have it"};
    case absl::StatusCode::kPermissionDenied:
      return {absl::StatusCode::kUnavailable, "the store denies the coordinator access"};
    case absl::StatusCode::kDeadlineExceeded:
      return {code, "the store gives no answer; try again later"};
    case absl::StatusCode::kDataLoss:
      return {code, "the store gave a part of it only"};
    case absl::StatusCode::kUnavailable:
      return {code, "the store can't be reached; try again later"};
    case absl::StatusCode::kResourceExhausted:
      return {code, "the store is full"};
    default:
      return {absl::StatusCode::kUnavailable, "the store is not set up for it"};
  }
}

}  // namespace

absl::Status WithoutUri(const absl::Status& error, const std::string& field,
                        const std::string& value) {
  if (absl::IsCancelled(error)) {
    return MakeError(absl::StatusCode::kCancelled, Reason::kCancelled, field, value, "cancelled");
  }
  const auto detail = GetErrorDetail(error);
  if (error.ok() || !detail || detail->field != "uri") return error;
  if (detail->reason == Reason::kSizeLimit) {
    return InvalidField(Reason::kSizeLimit, field, value, "its file is larger than allowed");
  }
  const Words words = WordsFor(error.code());
  return MakeError(words.code, detail->reason, field, value, words.text);
}

}  // namespace rootstock
