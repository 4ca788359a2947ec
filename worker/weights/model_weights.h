// A base model's weights on one tp_rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/model/model_spec.h"
#include "common/tp/tp.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"

namespace rootstock {

// One decoder layer's slices. Norms and biases are f32.
struct LayerWeights {
  Matrix qkv;                         // [(heads + 2 · kv_heads) · head_dim, hidden]: q | k | v
  Matrix o;                           // [hidden, heads · head_dim]
  Matrix gate_up;                     // [2 · ffn, hidden]: gate | up
  Matrix down;                        // [hidden, ffn]
  const float* qkv_bias = nullptr;    // [qkv.rows]; null: none
  const float* input_norm = nullptr;  // [hidden]
  const float* post_norm = nullptr;   // [hidden]
  const float* q_norm = nullptr;      // [head_dim]; null: none
  const float* k_norm = nullptr;      // [head_dim]; null: none
};

// The loads of a group that run at the same time. Those on one host share its page cache: of the
// pages that several of them need each brings a part, between two meetings, and all find them there
// after the second.
struct LoadPeers {
  std::vector<int> on_host;  // tp_ranks, ascending; the loading one among them
  // Returns once every tp_rank of the group has called it as often: at a layer's begin, of every
  // one or of every few. An error when one of them has failed and comes no more: the load ends.
  std::function<absl::Status()> meet;
};

struct LoadOptions {
  DType dtype = DType::kBF16;  // storage of matrices: kF32 or kBF16
  // Bytes read so far and in all, of this tp_rank. May be empty. Called on the loading thread.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Without a `meet` the load asks nobody, and may read whole pages for the sake of narrow slices.
  LoadPeers peers;
};

// Owns the device memory of all slices. *Immutable after loading, thread-safe.*
class ModelWeights {
 public:
  // From MODEL_DIR's safetensors. kInvalidArgument/model_invalid names the tensor that is missing,
  // of another shape or dtype, with the numbers.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const std::filesystem::path& model_dir,
                                                            const ModelSpec& spec, const TpPlan& tp,
                                                            int tp_rank, Device& device,
                                                            const LoadOptions& options);
  // --load-format dummy: seeded random numbers, the same model at every tp_size.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Dummy(const ModelSpec& spec,
                                                             const TpPlan& tp, int tp_rank,
                                                             Device& device, uint64_t seed,
                                                             const LoadOptions& options);

  const Matrix& embedding() const { return embedding_; }  // [vocab range, hidden]
  const Matrix& head() const { return head_; }            // [vocab range, hidden]; may be embedding
  const float* final_norm() const { return final_norm_; }  // [hidden]
  const std::vector<LayerWeights>& layers() const { return layers_; }

  // Of the whole model, the same on every tp_rank: config, tensor headers, first and last 4 KiB of
  // each tensor. For Dummy: of the config and the seed.
  const Digest& fingerprint() const { return fingerprint_; }
  uint64_t bytes_read() const { return bytes_read_; }  // of tensor data, fingerprint not counted
  uint64_t device_bytes() const { return device_bytes_; }

 private:
  friend class WeightLoader;
  ModelWeights() = default;

  std::vector<DeviceBuffer> buffers_;
  Matrix embedding_;
  Matrix head_;
  const float* final_norm_ = nullptr;
  std::vector<LayerWeights> layers_;
  Digest fingerprint_;
  uint64_t bytes_read_ = 0;
  uint64_t device_bytes_ = 0;
};

}  // namespace rootstock
