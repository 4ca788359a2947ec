// What a decoder is made of, on one device. Kernels behind it know neither models nor adapters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/model/model_spec.h"

namespace rootstock {

namespace kernels::cuda {
struct PeerGroup;
}

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
// [layer][K, V][page_tokens][num_kv_heads][head_dim] of the activation type.
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

// An adapter at one (layer, module) on this rank; a and b are device memory. Row r of A [lora_rank,
// in] lies at slab + 128 · a[r], row r of B transposed [lora_rank, out] at slab + 128 · b[r].
struct LoraSite {
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  int lora_rank = 0;  // 0: nothing of the module here
  float scale = 0.0f;
};

// A fully sharded adapter (DESIGN §6) holds other components of A than of B, and some of its B are
// slices of the output. So sites are seen in three ways, each a table of its own.
enum class LoraView : uint8_t {
  kShrink,       // a: the components whose A this rank holds
  kExpand,       // b: all components, over the target's features
  kExpandSlice,  // b: all components, over the target's slice
};
constexpr int kNumLoraViews = 3;

// Adapters that may be summed at one position, and groups of all rows of a step.
constexpr int kMaxStackedAdapters = 4;
constexpr int MaxLoraGroups(int max_rows) {
  return kMaxStackedAdapters * (max_rows > 64 ? max_rows : 64);
}

// Of sets of modules, a bit each by Module.
constexpr uint32_t ModuleBit(Module module) { return 1u << static_cast<uint32_t>(module); }
inline constexpr uint32_t kEveryModule = (1u << kAllModules.size()) - 1;

// Tokens that run with one adapter: its weights are read once for all of them.
struct LoraGroup {
  std::span<const LoraSite> sites;         // [kNumLoraViews][num_layers][7], by Module
  const LoraSite* device_sites = nullptr;  // the same in device memory
  std::span<const int32_t> tokens;         // [n] ascending indices into the batch
  std::span<const float> scales;           // [n] times the site's scale
  bool fully_sharded = false;              // over several ranks: v needs a collective
  int max_lora_rank = 0;                   // of its modules, over all ranks
  uint32_t modules = kEveryModule;         // that it has in some layer, the same on all ranks

  const LoraSite& site(LoraView view, int layer, Module m) const {
    const size_t layers = sites.size() / (kNumLoraViews * kAllModules.size());
    return sites[(static_cast<size_t>(view) * layers + layer) * kAllModules.size() +
                 static_cast<size_t>(m)];
  }
};

// Borrowed until EndStep. Groups add into a token in their order.
struct StepView {
  std::span<const int32_t> token_ids;  // [tokens]; -1 - slot: the token that the slot sampled last
  std::span<const int32_t> positions;  // [tokens]
  std::span<const SequenceView> rows;
  std::span<const LoraGroup> groups;
  std::span<const int32_t> output_tokens;  // [outputs] tokens whose logits are wanted
  bool by_layer = false;                   // never replayed: something is done between layers
};

constexpr int32_t LastTokenOf(uint32_t slot) { return -1 - static_cast<int32_t>(slot); }
constexpr uint32_t SlotOf(int32_t token_id) { return static_cast<uint32_t>(-1 - token_id); }

// One module's part of a fused projection: columns [column, column + features) of the output.
struct LoraTarget {
  Module module = Module::kQ;
  int column = 0;
  int features = 0;
  // Columns of the output that a fully sharded B of a row-parallel module adds to on this rank.
  int slice_column = 0;
  int slice_features = 0;
};

// What adapters add to a fused projection: v of LoraShrink, not yet expanded. Taken by the operator
// that consumes the projection, or by LoraExpand where a collective comes between.
struct LoraDelta {
  int layer = 0;
  int in = 0;
  std::array<LoraTarget, 3> targets;
  int num_targets = 0;  // 0: nothing to add

  std::span<const LoraTarget> all() const {
    return {targets.data(), static_cast<size_t>(num_targets)};
  }
};

// What is missing of v at fully sharded adapters, in f32 and one buffer of the device, each
// (target, group) in order. kGather: pieces of `floats`, one a tp_rank in order, of which this
// rank's is written: [token][ceil(lora_rank / tp_size)]. kSum: partial sums [token][lora_rank],
// `floats` in all.
struct LoraExchange {
  enum class Kind : uint8_t { kNone, kGather, kSum } kind = Kind::kNone;
  float* data = nullptr;
  size_t floats = 0;
  bool done = false;  // by LoraPack itself, through OpsLimits::peers: v is whole
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

struct OpsLimits {
  int max_tokens = 0;     // of a step
  int max_rows = 0;       // sequences of a step
  int max_outputs = 0;    // of a step
  int max_positions = 0;  // of a sequence
  AttentionShape attention;
  int max_in = 0;  // widest input of a projection
  int num_layers = 0;
  int tp_size = 1;
  int tp_rank = 0;
  bool rehearsal = false;  // no step will come: what steps take is wanted, recordings only counted
  const kernels::cuda::PeerGroup* peers = nullptr;  // Communicator::peers
};

struct OpsStepStats {
  uint64_t lora_weight_bytes = 0;  // of adapters' rows read in the step, on the host's processor
  LoraKernelStats lora_shrink, lora_expand;
};

// Called between BeginStep and EndStep, in one order on every tp_rank. Pointers are device memory.
// Activations (void*) are of activation_type; the residual stream and logits are f32. Operators are
// enqueued and may not have run when they return. Errors show at EndStep. Implementations: CpuOps,
// CudaOps. *Step thread only.*
class Ops {
 public:
  virtual ~Ops() = default;
  virtual DType activation_type() const = 0;

  // Takes the memory that steps of at most these sizes need.
  virtual absl::Status Prepare(const OpsLimits& limits) = 0;
  // After Prepare, on every tp_rank. `forward` calls the operators of a whole step: where launches
  // can be recorded it runs here for steps of fixed sizes, and Run replays it.
  virtual absl::Status Record(const std::function<absl::Status()>& forward) = 0;
  // Once every tp_rank has recorded: a step of the kind that is not.
  virtual absl::Status WarmUp(const std::function<absl::Status()>& forward) = 0;
  // Device memory of what Record recorded, or after a rehearsal would record.
  virtual uint64_t recorded_bytes() const { return 0; }
  virtual absl::Status BeginStep(const StepView& step) = 0;
  // Rows that operators run with: the step's, or more where sizes are fixed; the rest are pads.
  virtual int num_tokens() const = 0;
  virtual int num_outputs() const = 0;
  // Floats of one target in a rank's piece of a LoraExchange, where sizes are fixed; else 0.
  virtual int exchange_width() const = 0;
  // `forward` for the step that was begun.
  virtual absl::Status Run(const std::function<absl::Status()>& forward) = 0;

  // residual [tokens, table.cols] = table[id - first_id]; rows outside the table become 0.
  virtual void Embed(const Matrix& table, int first_id, float* residual) = 0;

  // residual [tokens, n] += delta [tokens, n] (null: nothing) + lora; out [tokens or outputs, n]:
  // out[i] = weight [n] · residual[t] / sqrt(mean(residual[t]²) + eps), t = i or output_tokens[i].
  virtual void AddRmsNorm(float* residual, void* delta, const LoraDelta& lora, const float* weight,
                          float eps, int n, bool outputs_only, void* out) = 0;

  // delta += lora on this tp_rank, delta = Σ over tp_ranks, then as AddRmsNorm, in one operator. It
  // is a collective, of all tokens of delta. False, and nothing was done, where the sum must be the
  // communicator's.
  virtual bool SumAddRmsNorm(float* /*residual*/, const void* /*delta*/, const LoraDelta& /*lora*/,
                             const float* /*weight*/, float /*eps*/, int /*n*/,
                             bool /*outputs_only*/, void* /*out*/) {
    return false;
  }

  // out [tokens, w.rows] = x [tokens, w.cols] · wᵀ + bias [w.rows] (null: none).
  virtual void Linear(const void* x, const Matrix& w, const float* bias, void* out) = 0;
  // logits [outputs, w.rows] = x [outputs, w.cols] · wᵀ.
  virtual void Head(const void* x, const Matrix& w, float* logits) = 0;

  // logits [outputs, Σ widths] = parts side by side: part p is [outputs, widths[p]], and they lie
  // one after the other.
  virtual void JoinLogits(std::span<const int> widths, const float* parts, float* logits) = 0;

  // qkv [tokens, (num_heads + 2 · num_kv_heads) · head_dim] += lora; normalises (if asked) and
  // rotates q and k of each head in place, then writes k and v into the pages.
  virtual void RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                           const LoraDelta& lora, void* qkv) = 0;

  // out [tokens, num_heads · head_dim] = causal attention of q (in qkv) over the pages.
  virtual void Attention(int layer, const AttentionShape& shape, const void* qkv, void* out) = 0;

  // out [tokens, n] = silu(gate) · up, gate | up = gate_up [tokens, 2 · n] + lora.
  virtual void SiluMul(void* gate_up, const LoraDelta& lora, int n, void* out) = 0;
  // Linear and SiluMul in one, of x's LoraShrink `lora`; gate_up [tokens, 2 · n] is room for w's
  // outputs. False, and nothing was done, where something may have to come between (LoraPack).
  virtual bool LinearSiluMul(const void* x, const Matrix& w, const LoraDelta& lora, int n,
                             void* gate_up, void* out) {
    if (lora.num_targets != 0) return false;
    Linear(x, w, nullptr, gate_up);
    SiluMul(gate_up, lora, n, out);
    return true;
  }

  // v = x [tokens, in] · Aᵀ for each group and target, valid until the next LoraShrink. Called
  // right before the Linear that it goes with, and may run with that.
  virtual LoraDelta LoraShrink(int layer, std::span<const LoraTarget> targets, int in,
                               const void* x) = 0;

  // Between LoraShrink and what takes its delta: packs v of the fully sharded adapters for one
  // collective, kNone (the same on all ranks) when there are none. The buffer is valid until the
  // next LoraPack.
  virtual LoraExchange LoraPack(const LoraDelta& lora) = 0;
  // Puts the collective's result back: v is whole.
  virtual void LoraUnpack(const LoraDelta& lora, const LoraExchange& exchange) = 0;

  // out [tokens, width] += scale · v · Bᵀ in each target's columns, or in its slice's.
  virtual void LoraExpand(const LoraDelta& lora, int width, void* out) = 0;

  // What was enqueued, and the first error there was so far; waits for nothing.
  virtual absl::StatusOr<OpsStepStats> EndStep() = 0;
};

}  // namespace rootstock
