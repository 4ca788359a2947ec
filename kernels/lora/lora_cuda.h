// Batched LoRA on the GPU: shrink, and what the consumers of a projection need to add its expand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

constexpr int kModules = 7;         // q k v o gate up down: common/model's Module
constexpr int kMaxLoraTargets = 3;  // of one fused projection
constexpr int kMaxLoraRank = 256;

// An adapter at one (layer, module) in device memory. Row r of A [lora_rank, in] lies at
// slab + 128 · a[r], row r of Bᵀ [lora_rank, out] at slab + 128 · b[r], of the compute type.
struct LoraSiteEntry {
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  int32_t lora_rank = 0;  // 0: the adapter leaves this module alone
  float scale = 0.0f;
};

// Tokens that run with one adapter.
struct LoraGroupEntry {
  const LoraSiteEntry* sites = nullptr;  // [num_layers · kModules], layer-major, device memory
  int32_t begin = 0;                     // of its members
  int32_t count = 0;
};

// A token and one adapter that runs on it.
struct LoraRow {
  const LoraSiteEntry* sites = nullptr;  // of the adapter, as in its group; null: no adapter
  float scale = 0.0f;                    // times the site's scale
  int32_t token = 0;
  int32_t member = 0;  // of the groups, where `sites` is not null
  int32_t next = -1;   // the entry of the token's next adapter (stacked); -1: none
};

// Neighbours in the order of the rows whose first adapter is the same.
struct alignas(16) LoraTile {
  const LoraSiteEntry* sites = nullptr;  // of that adapter; null: none
  int32_t first = 0;                     // of the rows
  int32_t count = 0;                     // at most LoraTileTokens; 0: an unused tile
};

// The adapters of a step, in device memory at fixed addresses; the content changes between replays.
// Members are (token, adapter) pairs, grouped by adapter, tokens ascending in a group. A token that
// several adapters run on (stacked) is in several groups, summed in the order of the groups.
// Consumers walk the tokens in the order of `rows`, a tile at a time, so that what tokens share of
// B comes from memory once. lora_rows.h fills rows, row_of and tiles.
struct LoraStep {
  const std::byte* slab = nullptr;
  Type type = Type::kBF16;
  const int32_t* num_groups = nullptr;     // [1]
  const LoraGroupEntry* groups = nullptr;  // [max_groups], those behind num_groups of no tokens
  const int32_t* tokens = nullptr;         // [members]
  // [tokens of the launch + entries that `next` names]: first one entry a token, by its first
  // group, tokens without adapter (pads too) last; then the others of stacked tokens.
  const LoraRow* rows = nullptr;
  const int32_t* row_of = nullptr;  // [tokens of the launch]: a token's entry among the first
  const LoraTile* tiles = nullptr;  // [max_tiles]
  int max_tiles = 0;                // capacities, for grids
  int max_groups = 0;
  int max_members = 0;
  int max_lora_rank = kMaxLoraRank;  // of what the step holds
  float* v = nullptr;  // scratch of VFloats(...) floats, written by Shrink, read by consumers
  size_t v_floats = 0;
};

// The modules of a fused projection, in column order.
struct LoraTargets {
  int layer = 0;
  int count = 0;  // 0: no LoRA at this site
  int module[kMaxLoraTargets] = {};
  int column[kMaxLoraTargets] = {};    // first output column
  int features[kMaxLoraTargets] = {};  // outputs on this rank
  int in = 0;                          // inputs on this rank
};

// Floats of LoraStep::v for steps of at most max_members members at projections of at most max_in
// inputs. A step of at most kDecodeTokens tokens has at most kDecodeMembers members.
constexpr int kDecodeTokens = 256;
constexpr int kDecodeMembers = 1024;

// Tokens of a tile in a launch of `num_tokens`, and a bound of its tiles.
constexpr int LoraTileTokens(int num_tokens) { return num_tokens > kDecodeTokens ? 64 : 8; }
constexpr int MaxLoraTiles(int num_tokens, int max_groups) {
  const int tiles = (num_tokens + LoraTileTokens(num_tokens) - 1) / LoraTileTokens(num_tokens);
  return tiles + max_groups + 1 < num_tokens ? tiles + max_groups + 1 : num_tokens;
}

size_t VFloats(int max_members, int max_in);

// v = x [tokens, in] · Aᵀ for every member and target, in f32, split over `in` in a fixed way.
// For decode (few members a group) and prefill; which of two kernels runs, and how v lies, depends
// on `num_tokens`, the step's token capacity, alone: the consumer must be given the same number.
// x_ready: x was written, and the v before was read, ahead of the kernel that this is launched
// behind, and that one lets it start no sooner than all ahead of it has ended (Linear::LetsIn).
// Then decode's kernel runs beside it.
void LoraShrink(const LoraStep& step, const LoraTargets& targets, const void* x, int num_tokens,
                cudaStream_t stream, bool x_ready = false);

// LoraShrink of more than kDecodeTokens tokens in bf16, `in` a multiple of 8, on sm_90 and `sms`
// SMs, an even number. The launch behind it may start while it runs, but never before the kernels
// ahead have ended: what these wrote it may read at once, v when it has waited for this one.
void LoraShrinkBeside(const LoraStep& step, const LoraTargets& targets, const void* x, int sms,
                      cudaStream_t stream);

// LoraShrink of more than kDecodeTokens tokens in bf16, `in` a multiple of 8, as it runs where the
// GPU is not sm_90: any from sm_80 on takes it.
void LoraShrinkLongOnAny(const LoraStep& step, const LoraTargets& targets, const void* x,
                         cudaStream_t stream);

// out [tokens, width] += scale · v · B in each target's columns: on its own, for sites whose
// consumer can't do it (a collective comes between).
void LoraExpand(const LoraStep& step, const LoraTargets& targets, int width, void* out,
                int num_tokens, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
