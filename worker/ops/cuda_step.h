// What a step's kernels read that changes from step to step: one buffer, one upload.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/lora/lora_exchange.h"
#include "worker/device/cuda_device.h"
#include "worker/ops/ops.h"

namespace rootstock {

// Sizes of a launch, pads included.
struct StepSizes {
  int tokens = 0;
  int rows = 0;
  int outputs = 0;
  int groups = 0;    // of LoRA; 0: no adapters in this launch
  int members = 0;   // (token, adapter) pairs
  int exchange = 0;  // of fully sharded adapters: floats of v a rank and target; 0: none
  uint32_t modules = kEveryModule;  // ModuleBits: what no adapter of the launch has costs nothing
  friend bool operator==(const StepSizes&, const StepSizes&) = default;
};

// Pointers into a packed buffer, on the device or its image on the host. Where they lie depends on
// the sizes alone, so that a recorded launch finds the next step's data at its addresses.
struct StepArrays {
  int32_t* num_groups = nullptr;     // [1]
  int32_t* token_ids = nullptr;      // [tokens]
  int32_t* positions = nullptr;      // [tokens]
  uint32_t* token_pages = nullptr;   // [tokens]
  int32_t* q_begin = nullptr;        // [rows + 1]
  int32_t* kv_len = nullptr;         // [rows]
  int32_t* page_begin = nullptr;     // [rows + 1]
  int32_t* output_tokens = nullptr;  // [outputs]
  kernels::cuda::LoraGroupEntry* groups = nullptr;
  int32_t* members = nullptr;                   // tokens [members]
  kernels::cuda::LoraRow* lora_rows = nullptr;  // [tokens + members]
  int32_t* row_of = nullptr;                    // [tokens]
  kernels::cuda::LoraTile* tiles = nullptr;
  int32_t* num_exchange = nullptr;                        // [1]
  kernels::cuda::LoraExchangeMember* exchange = nullptr;  // [members]
  int32_t* page_ids = nullptr;                            // [pages]
  size_t fixed_bytes = 0;                                 // of all before page_ids

  static StepArrays At(std::byte* base, const StepSizes& sizes);
  kernels::cuda::AttentionRows attention() const { return {q_begin, kv_len, page_begin, page_ids}; }
};

// The largest launch, and pages of all its rows together.
struct StepCapacity {
  StepSizes sizes;
  int pages = 0;
  int tp_size = 1;
};

// Floats of v that a token's adapter takes in one rank's piece of a target.
inline int ExchangeWidth(const LoraGroup& group, int tp_size) {
  return group.fully_sharded ? (group.max_lora_rank + tp_size - 1) / tp_size : 0;
}

// Owns the buffer on the device and its images on the host. *Step thread only.*
class CudaStep {
 public:
  static absl::StatusOr<std::unique_ptr<CudaStep>> Create(CudaDevice& device,
                                                          const StepCapacity& capacity);
  ~CudaStep();

  // Packs the step, padded to `sizes`, and enqueues its upload. Pads are tokens of page 0 without
  // KV.
  absl::Status Fill(const StepView& step, const StepSizes& sizes, uint32_t page_tokens);
  // Of the upload, for what else the step reads from the host.
  cudaStream_t upload_stream() const { return upload_stream_; }
  // What the step enqueues from now on comes behind its uploads. After each Fill.
  absl::Status FollowUploads();
  // What was enqueued so far is all that reads the step: the next one's upload comes behind it,
  // beside what follows (the sampler).
  absl::Status MarkRead();

  // Of sizes given to Fill, now or at a replay.
  StepArrays DeviceArrays(const StepSizes& sizes) const {
    return StepArrays::At(buffer_.data(), sizes);
  }
  // The image that the last Fill made; for planning.
  const StepArrays& host() const { return host_; }

 private:
  static constexpr int kImages = 3;  // steps whose uploads may be under way, and one to fill

  explicit CudaStep(CudaDevice& device) : device_(device) {}
  absl::Status FillRows(const StepView& step, const StepSizes& sizes, uint32_t page_tokens,
                        int* pages);
  void FillLora(const StepView& step, const StepSizes& sizes);
  void FillExchange(const StepView& step);

  CudaDevice& device_;
  StepCapacity capacity_;
  DeviceBuffer buffer_;
  std::byte* images_[kImages] = {};
  cudaEvent_t uploaded_[kImages] = {};
  cudaStream_t upload_stream_ = nullptr;
  cudaEvent_t was_read_ = nullptr;
  int image_ = 0;  // that was filled last
  StepArrays host_;
  std::vector<float> scales_;
};

}  // namespace rootstock
