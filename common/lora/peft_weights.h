// Numbers out of an adapter's safetensors file, copied and checked to be finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/peft_files.h"
#include "common/safetensors/header.h"

namespace rootstock {

struct PeftLimits;

// Over a file that outlives it. Thread-safe.
class WeightsReader {
 public:
  // Reads and checks the header. kInvalidArgument with header.h's reasons, or pickle.
  static absl::StatusOr<WeightsReader> Create(const SteadyFile& file, const PeftLimits& limits);

  const SafetensorsHeader& header() const { return header_; }
  // The tensor's bytes. kInvalidArgument/nonfinite naming `module` and the tensor for NaN, infinity
  // and what bf16 can't hold; truncated when the file shrank.
  absl::StatusOr<std::vector<uint8_t>> Read(const TensorInfo& tensor,
                                            const std::string& module) const;

 private:
  explicit WeightsReader(const SteadyFile& file) : file_(&file) {}

  const SteadyFile* file_;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace rootstock
