// Reads a PEFT directory: honoured or refused by name, never ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/canonical.h"
#include "common/lora/lora_spec.h"
#include "common/model/model_spec.h"
#include "common/safetensors/header.h"

namespace rootstock {

struct PeftLimits {
  int max_lora_rank = kMaxLoraRank;
  uint64_t max_bytes = uint64_t{4} << 30;  // of the weights file
  uint64_t max_header_bytes = 4 << 20;
  size_t max_tensors = 1 << 16;
};

struct PeftAdapter {
  LoraSpec spec;
  std::vector<LoraWeights> weights;  // parallel to spec.modules; finite
  std::string base_model_name;       // base_model_name_or_path
  // Config fields that change nothing, and rules of it that matched nothing.
  std::vector<std::string> harmless_fields;
};

// Reads the directory for `model`. Nothing is allocated for a file's claims before they are
// checked; the files are of one directory, also where another takes its path meanwhile, read once
// and copied. Errors carry one of adapter_rejects_total's reasons and name field, tensor or file:
// kInvalidArgument, or kNotFound for a missing directory or file. `before_numbers`, unless empty,
// is called with the weights file's size when all else is checked and none of its numbers is in
// memory; it may wait.
absl::StatusOr<PeftAdapter> LoadPeftAdapter(
    const std::filesystem::path& path, const ModelSpec& model, const PeftLimits& limits,
    const std::function<void(uint64_t bytes)>& before_numbers = {});

std::string EncodeCanonical(const PeftAdapter& adapter, const ModelSpec& model);

}  // namespace rootstock
