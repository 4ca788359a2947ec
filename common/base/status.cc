#include "common/base/status.h"

#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rootstock {
namespace {

constexpr char kDetailUrl[] = "rootstock.ErrorDetail";
constexpr char kRetryUrl[] = "rootstock.RetryAfterMs";
constexpr size_t kMaxValueBytes = 200;

constexpr auto kNames = std::to_array<std::pair<Reason, const char*>>({
    {Reason::kRankTooHigh, "rank_too_high"},
    {Reason::kModuleUnknown, "module_unknown"},
    {Reason::kShapeMismatch, "shape_mismatch"},
    {Reason::kDtype, "dtype"},
    {Reason::kDora, "dora"},
    {Reason::kBias, "bias"},
    {Reason::kBaseMismatch, "base_mismatch"},
    {Reason::kNonfinite, "nonfinite"},
    {Reason::kHeaderTooLarge, "header_too_large"},
    {Reason::kHeaderInvalid, "header_invalid"},
    {Reason::kTruncated, "truncated"},
    {Reason::kOverlapOrHole, "overlap_or_hole"},
    {Reason::kDigestMismatch, "digest_mismatch"},
    {Reason::kPathInvalid, "path_invalid"},
    {Reason::kSizeLimit, "size_limit"},
    {Reason::kQuota, "quota"},
    {Reason::kUnknownField, "unknown_field"},
    {Reason::kPeftType, "peft_type"},
    {Reason::kModulesToSave, "modules_to_save"},
    {Reason::kUnpairedTensor, "unpaired_tensor"},
    {Reason::kNothingAttached, "nothing_attached"},
    {Reason::kUnattachedTensor, "unattached_tensor"},
    {Reason::kPickle, "pickle"},
    {Reason::kConfigInvalid, "config_invalid"},
    {Reason::kUnsupportedField, "unsupported_field"},
    {Reason::kDuplicate, "duplicate"},
    {Reason::kRowTooLong, "row_too_long"},
    {Reason::kQueueFull, "queue_full"},
    {Reason::kDeadlineUnreachable, "deadline_unreachable"},
    {Reason::kTenantLimit, "tenant_limit"},
    {Reason::kKvPressure, "kv_pressure"},
    {Reason::kDraining, "draining"},
    {Reason::kUnknownModel, "unknown_model"},
    {Reason::kInvalidArgument, "invalid_argument"},
    {Reason::kEmptyPrompt, "empty_prompt"},
    {Reason::kContextLength, "context_length"},
    {Reason::kNoTokenizer, "no_tokenizer"},
    {Reason::kDeadlineExceeded, "deadline_exceeded"},
    {Reason::kCancelled, "cancelled"},
    {Reason::kWorkerLost, "worker_lost"},
    {Reason::kNameTaken, "name_taken"},
    {Reason::kTooLarge, "too_large"},
    {Reason::kModelInvalid, "model_invalid"},
    {Reason::kUnsupportedModel, "unsupported_model"},
    {Reason::kCannotSplit, "cannot_split"},
    {Reason::kNoMemory, "no_memory"},
    {Reason::kIoError, "io_error"},
    {Reason::kNoSpace, "no_space"},
    {Reason::kGroupMismatch, "group_mismatch"},
    {Reason::kStaleEpoch, "stale_epoch"},
    {Reason::kInternal, "internal"},
});

}  // namespace

const char* ReasonName(Reason reason) {
  for (const auto& [r, name] : kNames) {
    if (r == reason) return name;
  }
  return "internal";
}

std::optional<Reason> ReasonFromName(const std::string& name) {
  for (const auto& [r, n] : kNames) {
    if (name == n) return r;
  }
  return std::nullopt;
}

absl::Status MakeError(absl::StatusCode code, Reason reason, const std::string& field,
                       const std::string& value, const std::string& text) {
  const std::string shown =
      value.size() <= kMaxValueBytes ? value : absl::StrCat(value.substr(0, kMaxValueBytes), "…");
  absl::Status status(code, shown.empty() ? absl::StrCat(field, ": ", text)
                                          : absl::StrCat(field, "=", shown, ": ", text));
  // NUL-separated: none of the three may hold one.
  status.SetPayload(kDetailUrl, absl::Cord(absl::StrCat(ReasonName(reason), std::string(1, '\0'),
                                                        field, std::string(1, '\0'), shown)));
  return status;
}

absl::Status InvalidField(Reason reason, const std::string& field, const std::string& value,
                          const std::string& text) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, field, value, text);
}

std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(kDetailUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::string flat(*payload);
  const std::vector<std::string> parts = absl::StrSplit(flat, absl::MaxSplits('\0', 2));
  if (parts.size() != 3) return std::nullopt;
  return ErrorDetail{ReasonFromName(parts[0]).value_or(Reason::kInternal), parts[1], parts[2]};
}

absl::Status WithRetryAfter(absl::Status status, int64_t milliseconds) {
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(milliseconds)));
  return status;
}

std::optional<int64_t> GetRetryAfterMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) {
    return std::nullopt;
  }
  return milliseconds;
}

absl::Status Annotate(const absl::Status& status, const std::string& prefix) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(prefix, ": ", std::string(status.message())));
  for (const char* url : {kDetailUrl, kRetryUrl}) {
    if (const auto payload = status.GetPayload(url); payload.has_value()) {
      out.SetPayload(url, *payload);
    }
  }
  return out;
}

}  // namespace rootstock
