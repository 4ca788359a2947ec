#include "worker/runtime/fake_model.h"

#include <cmath>
#include <limits>

#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int kLayers = 2;  // as steps behind a load see them

}  // namespace

FakeModel::FakeModel(int tp_rank, uint32_t num_pages)
    : tp_rank_(tp_rank),
      info_{kVocab, 200, DType::kF32, {num_pages, 1024, kPageTokens}},
      slab_(num_pages * kPageTokens, -1) {}

absl::Status FakeModel::Prepare(const ModelLimits& limits, int max_logprobs) {
  max_outputs = limits.max_outputs;
  return sampler_.Prepare({limits.num_slots, limits.max_outputs, max_logprobs, kVocab});
}

std::vector<float> FakeModel::Logits(const std::vector<int32_t>& tokens,
                                     const std::vector<std::pair<uint64_t, float>>& adapters) {
  uint64_t hash = 1469598103934665603u;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
  for (const auto& [id, scale] : adapters) {
    hash = (hash ^ id ^ static_cast<uint64_t>(scale * 16)) * 1099511628211u;
  }
  std::vector<float> out(kVocab);
  for (int v = 0; v < kVocab; ++v) {
    out[v] = std::sin(static_cast<float>(hash % 1000003) + 2.5f * static_cast<float>(v)) * 3.0f;
  }
  out[kPoison] = -50.0f;
  if (tokens.back() == kPoison) out[3] = std::numeric_limits<float>::quiet_NaN();
  return out;
}

absl::StatusOr<const float*> FakeModel::Forward(const ForwardBatch& batch) {
  ++forwards;
  for (int layer = 0; batch.before_layer && layer < kLayers; ++layer) {
    RETURN_IF_ERROR(batch.before_layer(layer));
  }
  outputs_seen.push_back(static_cast<int>(batch.logit_tokens.size()));
  logits_.clear();
  stats_.ops.lora_shrink = stats_.ops.lora_expand = {batch.segments.size(), 0.5};
  size_t next_output = 0;
  for (const ForwardRow& row : batch.rows) {
    for (int i = 0; i < row.num_tokens; ++i) {
      const int position = row.start_position + i;
      const int32_t id = batch.token_ids[row.begin + i];
      slab_[row.page_table[position / kPageTokens] * kPageTokens + position % kPageTokens] =
          id < 0 ? sampler_.last_tokens()[SlotOf(id)] : id;
      if (next_output >= batch.logit_tokens.size() ||
          batch.logit_tokens[next_output] != row.begin + i) {
        continue;
      }
      ++next_output;
      std::vector<int32_t> tokens;
      for (int p = 0; p <= position; ++p) {
        tokens.push_back(slab_[row.page_table[p / kPageTokens] * kPageTokens + p % kPageTokens]);
      }
      std::vector<std::pair<uint64_t, float>> adapters;
      for (const LoraSegment& s : batch.segments) {
        if (s.begin <= row.begin + i && row.begin + i < s.end) {
          adapters.emplace_back(s.adapter->pages()[0].value, s.scale);
        }
      }
      const std::vector<float> logits = Logits(tokens, adapters);
      logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
  }
  return tp_rank_ == 0 ? logits_.data() : nullptr;
}

}  // namespace rootstock
