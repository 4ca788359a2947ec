// One file that is the adapter: a canonical safetensors whose sha256 is the adapter's identity.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/lora/lora_spec.h"
#include "common/model/model_spec.h"
#include "common/safetensors/safetensors.h"

namespace rootstock {

// A and B of one module in file types. y += scale · B·(A·x)
struct LoraWeights {
  DType a_dtype = DType::kF32;
  DType b_dtype = DType::kF32;
  std::vector<uint8_t> a;  // [lora_rank, in_features], row-major
  std::vector<uint8_t> b;  // [out_features, lora_rank], row-major
};

// Tensors "model.layers.N.BLOCK.MODULE.lora_A" and ".lora_B", by name, in file types; metadata
// "rootstock.lora" holds `spec` with exact scales. Equal content gives equal bytes, however the
// directory it came from was written. `weights` is parallel to spec.modules.
std::string EncodeCanonical(const LoraSpec& spec, const std::vector<LoraWeights>& weights,
                            const ModelSpec& model);

struct CanonicalModule {
  TensorView a;  // [lora_rank, in_features]
  TensorView b;  // [out_features, lora_rank]
};

// A canonical file, checked against the base model. Immutable, thread-safe.
class CanonicalAdapter {
 public:
  // Maps PATH; touches its header only. Errors of SafetensorsFile::Open and Create.
  static absl::StatusOr<CanonicalAdapter> Open(const std::filesystem::path& path,
                                               const ModelSpec& model);
  // Over bytes that outlive it.
  static absl::StatusOr<CanonicalAdapter> Parse(std::span<const uint8_t> file,
                                                const ModelSpec& model);

  const LoraSpec& spec() const { return spec_; }
  // Parallel to spec().modules.
  const std::vector<CanonicalModule>& modules() const { return modules_; }

 private:
  // kInvalidArgument: header_invalid for metadata that is not canonical, base_mismatch or
  // shape_mismatch for another base, rank_too_high, unattached_tensor, unpaired_tensor.
  static absl::StatusOr<CanonicalAdapter> Create(SafetensorsFile file, const ModelSpec& model);

  LoraSpec spec_;
  std::vector<CanonicalModule> modules_;
  std::vector<SafetensorsFile> file_;  // one: keeps the mapping
};

}  // namespace rootstock
