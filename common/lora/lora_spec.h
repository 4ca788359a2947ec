// What an adapter is to the mathematics: y += scale · B·(A·x) at some modules.
#pragma once

#include <vector>

#include "common/model/model_spec.h"

namespace rootstock {

constexpr int kMaxLoraRank = 256;  // default ceiling of --max-lora-rank; pads nothing

struct LoraModule {
  int layer = 0;
  Module module = Module::kQ;
  int lora_rank = 0;   // of this module, rank_pattern applied
  float scale = 0.0f;  // alpha / r or alpha / sqrt(r), patterns applied; never folded into B
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

struct LoraSpec {
  std::vector<LoraModule> modules;  // by (layer, module), no duplicates, not empty
  friend bool operator==(const LoraSpec&, const LoraSpec&) = default;
};

}  // namespace rootstock
