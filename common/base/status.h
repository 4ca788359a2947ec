// Errors with a machine-readable reason: text is `field=value: reason text` (DESIGN §10).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rootstock {

// Closed list; the names in lower snake case are what metrics and the ErrorDetail trailer carry.
enum class Reason {
  // adapter_rejects_total
  kRankTooHigh,
  kModuleUnknown,
  kShapeMismatch,
  kDtype,
  kDora,
  kBias,
  kBaseMismatch,
  kNonfinite,
  kHeaderTooLarge,
  kHeaderInvalid,
  kTruncated,
  kOverlapOrHole,
  kDigestMismatch,
  kPathInvalid,
  kSizeLimit,
  kQuota,
  kUnknownField,
  kPeftType,
  kModulesToSave,
  kUnpairedTensor,
  kNothingAttached,
  kUnattachedTensor,
  kPickle,
  kConfigInvalid,
  kUnsupportedField,
  kDuplicate,
  kRowTooLong,
  // shed_total
  kQueueFull,
  kDeadlineUnreachable,
  kTenantLimit,
  kKvPressure,
  kDraining,
  // requests
  kUnknownModel,
  kInvalidArgument,
  kEmptyPrompt,
  kContextLength,
  kNoTokenizer,
  kDeadlineExceeded,
  kCancelled,
  kWorkerLost,
  kNameTaken,
  kTooLarge,
  // models and groups
  kModelInvalid,
  kUnsupportedModel,
  kCannotSplit,
  kNoMemory,
  kIoError,
  kNoSpace,  // on a disk: may pass when it has room again
  kGroupMismatch,
  kStaleEpoch,
  kInternal,
};

// "rank_too_high", …
const char* ReasonName(Reason reason);
std::optional<Reason> ReasonFromName(const std::string& name);

struct ErrorDetail {
  Reason reason = Reason::kInternal;
  std::string field;
  std::string value;
};

// Message: "field=value: text" ("field: text" when value is empty). Values over 200 bytes are cut.
absl::Status MakeError(absl::StatusCode code, Reason reason, const std::string& field,
                       const std::string& value, const std::string& text);

// INVALID_ARGUMENT, the commonest.
absl::Status InvalidField(Reason reason, const std::string& field, const std::string& value,
                          const std::string& text);

// The detail that MakeError attached; nothing for statuses made elsewhere.
std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status);

// When to try again, for those that were refused for want of room. Annotate keeps it.
absl::Status WithRetryAfter(absl::Status status, int64_t milliseconds);
std::optional<int64_t> GetRetryAfterMs(const absl::Status& status);

// The same status with "prefix: " before its message; keeps the detail.
absl::Status Annotate(const absl::Status& status, const std::string& prefix);

}  // namespace rootstock

// Returns from the enclosing function when `expr` is not OK.
#define RETURN_IF_ERROR(expr)                   \
  do {                                          \
    if (absl::Status _st = (expr); !_st.ok()) { \
      return _st;                               \
    }                                           \
  } while (0)

#define ROOTSTOCK_CONCAT_INNER(a, b) a##b
#define ROOTSTOCK_CONCAT(a, b) ROOTSTOCK_CONCAT_INNER(a, b)
// ASSIGN_OR_RETURN(auto x, F()): x = value of F(), or returns its status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(ROOTSTOCK_CONCAT(_status_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                          \
  if (!var.ok()) return var.status();         \
  lhs = std::move(*var)
