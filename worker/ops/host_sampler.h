// The sampler on the host.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/sampler/sampler.h"
#include "worker/ops/token_sampler.h"

namespace rootstock {

// Samples within Sample. *Step thread only.*
class HostSampler : public TokenSampler {
 public:
  absl::Status Prepare(const SamplerLimits& limits) override;
  const int32_t* last_tokens() const override { return last_tokens_.data(); }
  void Begin(uint32_t slot, bool counts) override;
  void Count(uint32_t slot, std::span<const int32_t> tokens, bool outputs) override;
  int32_t* chosen() override { return chosen_.data(); }
  absl::Status Follow(std::span<const SampleOrder> orders) override;
  absl::Status Sample(const float* logits, std::span<const SampleOrder> orders) override;
  absl::StatusOr<std::span<const SampleOutcome>> Collect() override;

 private:
  // Which tokens a sequence holds.
  class Counts {
   public:
    void Add(int32_t token, bool output);
    std::span<const kernels::TokenCount> all() const { return counts_; }

   private:
    std::vector<kernels::TokenCount> counts_;
    std::unordered_map<int32_t, size_t> index_;
  };

  SampleOutcome Run(std::span<const float> logits, const SampleOrder& order);
  int32_t Draw(std::span<const float> logits, const SampleOrder& order);

  SamplerLimits limits_;
  std::vector<int32_t> last_tokens_;             // [num_slots]
  std::vector<int32_t> chosen_;                  // [max_orders]
  std::vector<std::unique_ptr<Counts>> counts_;  // [num_slots]; null: not counted
  std::deque<std::vector<SampleOutcome>> done_;
  std::vector<SampleOutcome> collected_;
  kernels::SampleScratch scratch_;
};

}  // namespace rootstock
