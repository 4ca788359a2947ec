// One forward pass as the runtime orders it: PROTOCOL §3 with slots resolved.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ops/ops.h"

namespace rootstock {

class DeviceAdapter;  // worker/lora: a resident adapter's row table and scales

// Tokens [begin, end) of the flattened batch run with `adapter`, its scales times `scale`.
// Segments may overlap; a token's are summed in list order. Tokens in none cost no LoRA work.
struct LoraSegment {
  int begin = 0;
  int end = 0;
  const DeviceAdapter* adapter = nullptr;
  float scale = 1.0f;
};

// Tokens [begin, begin + num_tokens) of the batch belong to one sequence at positions
// start_position…; page_table holds the pages of positions 0 … start_position + num_tokens - 1.
struct ForwardRow {
  int begin = 0;
  int num_tokens = 0;
  int start_position = 0;
  std::span<const uint32_t> page_table;
};

struct ForwardBatch {
  std::vector<int32_t> token_ids;     // [tokens]; LastTokenOf(slot): what it sampled last
  std::vector<int32_t> positions;     // [tokens]
  std::vector<ForwardRow> rows;       // cover all tokens, in order
  std::vector<LoraSegment> segments;  // by begin, then list order of the spans
  std::vector<int32_t> logit_tokens;  // [outputs] indices into tokens whose logits are wanted
  // When set, the pass runs without graphs, and this is called before each layer is enqueued.
  std::function<absl::Status(int layer)> before_layer;
};

// What a forward pass did on this tp_rank.
struct ForwardStats {
  OpsStepStats ops;
};

}  // namespace rootstock
