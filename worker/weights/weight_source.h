// Where tensors come from: files, or a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/base/dtype.h"
#include "common/model/model_spec.h"
#include "common/safetensors/safetensors.h"
#include "common/tp/tp.h"

namespace rootstock {

// A tensor as the model wants it. A vector has one row.
struct TensorShape {
  std::string name;
  int rows = 0;
  int cols = 0;
  bool is_vector = false;
  bool is_norm = false;
};

// *Not thread-safe.*
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // kInvalidArgument/model_invalid: missing, or of another shape, with the numbers.
  virtual absl::Status Check(const TensorShape& tensor) const = 0;
  // model_invalid when the source holds a tensor that none of `used` names and that would change
  // the mathematics.
  virtual absl::Status CheckNothingLeft(const std::vector<TensorShape>& used) const = 0;
  // Bytes of one element where it is read.
  virtual size_t ElementBytes(const TensorShape& tensor) const = 0;
  // Starts reading rows × cols of a checked tensor and does not wait. Advice.
  virtual void Prefetch(const TensorShape& tensor, Range rows, Range cols) = 0;
  // rows × cols of a checked tensor as `to`, dense.
  virtual void Read(const TensorShape& tensor, Range rows, Range cols, DType to, void* out) = 0;
  virtual absl::StatusOr<Digest> Fingerprint() const = 0;
};

// kParts when the reader leaves most of the files to other ranks.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightFiles(
    const std::filesystem::path& model_dir, FileUse use);
// Uniform numbers of a size that keeps activations in range; norms are 1.
std::unique_ptr<WeightSource> MakeDummySource(const ModelSpec& spec, uint64_t seed);

}  // namespace rootstock
