// How the registry's tables hold digests and specs.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/lora/lora_spec.h"

namespace rootstock {

// DATA_LOSS/io_error.
absl::Status CorruptRegistry(const std::string& what);

std::string_view DigestBytes(const Digest& digest);  // of `digest`, which outlives it
absl::StatusOr<Digest> ToDigest(const std::string& bytes);

std::string PackSpec(const LoraSpec& spec);
absl::StatusOr<LoraSpec> UnpackSpec(const std::string& bytes);

}  // namespace rootstock
