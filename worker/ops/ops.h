// What a decoder is made of, on one device. Kernels behind it know neither models nor adapters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/model/model_spec.h"

namespace rootstock {

// A weight [rows, cols], row-major, on the device. Borrowed.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rows = 0;
  int cols = 0;
};

// The attention that one tp_rank computes.
struct AttentionShape {
  int num_heads = 0;     // of this rank
  int num_kv_heads = 0;  // of this rank; divides num_heads
  int head_dim = 0;
};

// The paged memory: page p lies at slab + p · page_bytes and holds
// [layer][K, V][page_tokens][num_kv_heads][head_dim] f32.
struct PagedMemory {
  std::byte* slab = nullptr;
  uint32_t page_bytes = 0;
  uint32_t page_tokens = 0;
};

// One sequence's tokens [begin, begin + num_tokens) of the batch, at start_position…; pages holds
// the pages of positions 0 … start_position + num_tokens - 1.
struct SequenceView {
  int begin = 0;
  int num_tokens = 0;
  int start_position = 0;
  std::span<const uint32_t> pages;
};

// An adapter at one (layer, module) on this rank. Row r of A [lora_rank, in] lies at
// slab + 128 · a[r], row r of B transposed [lora_rank, out] at slab + 128 · b[r].
struct LoraSite {
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  int lora_rank = 0;  // 0: the adapter leaves this module alone
  float scale = 0.0f;
};

// Tokens that run with one adapter: its weights are read once for all of them.
struct LoraGroup {
  std::span<const LoraSite> sites;  // [num_layers · 7], layer-major, by Module
  std::span<const int32_t> tokens;  // [n] ascending indices into the batch
  std::span<const float> scales;    // [n] times the site's scale
};

// Borrowed until EndStep. Groups add into a token in their order.
struct StepView {
  std::span<const int32_t> token_ids;  // [tokens]
  std::span<const int32_t> positions;  // [tokens]
  std::span<const SequenceView> rows;
  std::span<const LoraGroup> groups;
};

// One module's part of a fused projection: columns [column, column + features) of the output.
struct LoraTarget {
  Module module = Module::kQ;
  int column = 0;
  int features = 0;
};

struct RopeAndKv {
  const float* cos = nullptr;     // [max_position, head_dim / 2]
  const float* sin = nullptr;     // [max_position, head_dim / 2]
  const float* q_norm = nullptr;  // [head_dim]; null: none
  const float* k_norm = nullptr;  // [head_dim]; null: none
  float eps = 0.0f;
};

struct LoraKernelStats {
  uint64_t segments = 0;  // (adapter, module, tokens) that the kernel ran
  double seconds = 0;
  void Add(const LoraKernelStats& other) {
    segments += other.segments;
    seconds += other.seconds;
  }
};

struct OpsStepStats {
  uint64_t lora_weight_bytes = 0;  // of adapters' rows read in the step
  LoraKernelStats lora_shrink, lora_expand;
};

// Called between BeginStep and EndStep, in one order on every tp_rank. Pointers are device memory;
// activations are f32. Errors show at EndStep. Implementations: CpuOps. *Step thread only.*
class Ops {
 public:
  virtual ~Ops() = default;

  virtual absl::Status BeginStep(const StepView& step) = 0;

  // out [tokens, table.cols] = table[id - first_id]; rows outside the table become 0.
  virtual void Embed(const Matrix& table, int first_id, float* out) = 0;

  // residual [tokens, n] += delta [tokens, n] (null: nothing);
  // out[i] = weight [n] · residual[t] / sqrt(mean(residual[t]²) + eps), t = rows[i], or i when rows
  // is empty. out [rows or tokens, n].
  virtual void AddRmsNorm(float* residual, const float* delta, const float* weight, float eps,
                          int n, std::span<const int32_t> rows, float* out) = 0;

  // out [m, w.rows] = x [m, w.cols] · wᵀ + bias [w.rows] (null: none).
  virtual void Linear(const float* x, int m, const Matrix& w, const float* bias, float* out) = 0;

  // qkv [tokens, (num_heads + 2 · num_kv_heads) · head_dim]: normalises (if asked) and rotates q
  // and k of each head in place, then writes k and v into the pages.
  virtual void RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                           float* qkv) = 0;

  // out [tokens, num_heads · head_dim] = causal attention of q (in qkv) over the pages.
  virtual void Attention(int layer, const AttentionShape& shape, const float* qkv, float* out) = 0;

  // out [tokens, n] = silu(gate) · up, gate_up [tokens, 2 · n] = gate | up.
  virtual void SiluMul(const float* gate_up, int n, float* out) = 0;

  // v = x [tokens, in] · Aᵀ for each group and target. Returns v, [group][token][lora_rank] for
  // each target, valid until the next LoraShrink; empty when no token has an adapter here.
  virtual std::span<float> LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                                      const float* x) = 0;

  // out [tokens, width] += scale · v · Bᵀ in each target's columns, v of the last LoraShrink.
  virtual void LoraExpand(int layer, std::span<const LoraTarget> targets, int width,
                          float* out) = 0;

  // Waits for the device; first error of the step.
  virtual absl::StatusOr<OpsStepStats> EndStep() = 0;
};

}  // namespace rootstock
