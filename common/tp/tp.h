// Which part of each dimension a tp_rank holds: ranges, not equal parts (DESIGN §6).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace rootstock {

// Half-open [begin, end).
struct Range {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

struct TpShard {
  Range heads;     // query heads
  Range kv_heads;  // with more ranks than KV heads, ranks share one: ranges repeat
  Range ffn;       // columns of gate and up, rows of down
  Range vocab;     // rows of the embedding and of the head
};

struct TpPlan {
  int head_dim = 0;
  std::vector<TpShard> shards;  // by tp_rank

  int tp_size() const { return static_cast<int>(shards.size()); }
  // The module's sharded dimension, in features: output of q k v gate up, input of o down.
  Range sharded_features(int tp_rank, Module m) const;
  int max_kv_heads() const;
};

// kInvalidArgument/cannot_split, with the numbers, for what neither rule of DESIGN §6 fits.
absl::StatusOr<TpPlan> MakeTpPlan(const ModelSpec& model, int tp_size);

// Share of `tp_rank` of n items in units of `align` (the last unit may be short), as even as can
// be: earlier ranks take the longer parts.
Range EvenRange(int n, int tp_size, int tp_rank, int align);

// A fully sharded A is cut by lora_rank in pieces of ceil(r / tp_size) components, the last ones
// shorter or empty.
Range LoraPieceRange(int lora_rank, int tp_size, int piece);

// The piece that a tp_rank holds. The short pieces go round the ranks from layer to layer, so that
// over an adapter every rank holds its share of any lora_rank.
constexpr int LoraPieceOf(int layer, Module m, int tp_size, int tp_rank) {
  return (tp_rank + layer + static_cast<int>(m)) % tp_size;
}
constexpr int LoraPieceOwner(int layer, Module m, int tp_size, int piece) {
  return (piece + tp_size - (layer + static_cast<int>(m)) % tp_size) % tp_size;
}

// Outputs that a fully sharded B of o or down holds, as even as can be.
Range LoraOutputSlice(int out_features, int tp_size, int tp_rank);

}  // namespace rootstock
