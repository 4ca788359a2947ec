// The sampler on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <string>
#include <vector>

#include "kernels/sampler/sampler_cuda.h"
#include "worker/device/cuda_device.h"
#include "worker/ops/pinned_ids.h"
#include "worker/ops/token_sampler.h"

namespace rootstock {

// Two Samples may be under way. *Step thread only.*
class CudaSampler : public TokenSampler {
 public:
  explicit CudaSampler(CudaDevice& device) : device_(device) {}
  ~CudaSampler() override;

  absl::Status Prepare(const SamplerLimits& limits) override;
  const int32_t* last_tokens() const override { return last_tokens_.as<const int32_t>(); }
  void Begin(uint32_t slot, bool counts) override;
  void Count(uint32_t slot, std::span<const int32_t> tokens, bool outputs) override;
  int32_t* chosen() override { return ResultsAt(results_.data()).tokens; }
  absl::Status Follow(std::span<const SampleOrder> orders) override;
  absl::Status Sample(const float* logits, std::span<const SampleOrder> orders) override;
  absl::StatusOr<std::span<const SampleOutcome>> Collect() override;

 private:
  // What goes to the device and what comes back, in pinned memory that kernels read and write.
  struct Flight {
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    size_t in_bytes = 0;
    cudaEvent_t done = nullptr;
    std::vector<int> num_top;                // by order
    std::vector<std::vector<float>> logits;  // by order; of those that keep them
  };
  struct Results {
    int32_t* tokens = nullptr;      // [max_orders]
    float* logprobs = nullptr;      // [max_orders]
    int32_t* ranks = nullptr;       // [max_orders]
    int32_t* top_ids = nullptr;     // [max_orders, device_top_]
    float* top_logprobs = nullptr;  // [max_orders, device_top_]
  };

  void FreeFlights();
  static size_t InputRowBytes(size_t rows);
  static absl::Status MakeInput(Flight& flight, size_t bytes);
  // Never the old and the new at once: a group that attaches anew has given its memory to pages.
  absl::Status Refit(DeviceBuffer& buffer, size_t bytes, const std::string& purpose);
  // Whether the host needs the order's row of logits.
  bool NeedsLogits(const SampleOrder& order) const;
  uint32_t* CountsOf(uint32_t slot) const;
  Results ResultsAt(std::byte* base) const;
  size_t ResultBytes() const;
  kernels::cuda::SampleRow RowOf(const SampleOrder& order, std::vector<int32_t>& ids,
                                 std::vector<float>& values) const;
  absl::Status FillInput(std::span<const SampleOrder> orders, Flight& flight,
                         kernels::cuda::SampleStep& step);
  SampleOutcome OutcomeOf(const Results& results, size_t i, Flight& flight) const;
  void Check(absl::Status status);

  CudaDevice& device_;
  SamplerLimits limits_;
  int device_top_ = 0;         // top entries that the kernel finds; the host finds more
  DeviceBuffer last_tokens_;   // [num_slots]
  DeviceBuffer counts_;        // [num_slots, vocab]
  std::vector<bool> counted_;  // by slot
  PinnedIds count_ids_;        // on their way to counts_
  DeviceBuffer scratch_, input_, results_;
  Flight flights_[2];
  int next_ = 0;
  std::deque<int> under_way_;
  std::vector<SampleOutcome> outcomes_;
  std::vector<int32_t> adjust_ids_;
  std::vector<float> adjust_values_;
  absl::Status error_;  // of a call that returns none
};

}  // namespace rootstock
