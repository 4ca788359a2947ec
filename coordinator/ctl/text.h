// Text that people give loractl.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

bool IsUtf8(const std::string& text);

// The file's content. path_invalid with `field` for what can't be read, a folder among it;
// invalid_argument for text that is not UTF-8.
absl::StatusOr<std::string> ReadTextFile(const std::string& field, const std::string& path);

// Whether all arguments are UTF-8; names the first that is not.
absl::Status CheckArguments(int argc, const char* const* argv);

}  // namespace rootstock
