// Object stores' errors for those who may not know where a store is.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rootstock {

// An error of an ObjectStore in plain words, with `field=value` in the URI's place: NOT_FOUND, the
// store is there and has it not; UNAVAILABLE / io_error when it is away, denies access or is set up
// wrongly; DEADLINE_EXCEEDED / io_error when it stands still; INVALID_ARGUMENT / size_limit;
// DATA_LOSS; CANCELLED. Other errors, those of a sink say, stay as they are.
absl::Status WithoutUri(const absl::Status& error, const std::string& field,
                        const std::string& value);

}  // namespace rootstock
