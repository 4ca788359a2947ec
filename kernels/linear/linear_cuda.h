// Linear layers on the GPU.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/types.h"
#include "kernels/lora/lora_cuda.h"

namespace rootstock::kernels::cuda {

// LoraShrink (lora_cuda.h) of a step's adapters, of the x of the product that does it on the way.
struct LinearShrink {
  LoraStep step;
  LoraTargets targets;  // targets.in is k
  LoraTargets expand;   // with `gated` what is added to out's halves before; else not used
};

// What LoraExpand (lora_cuda.h) would add to out, of a v that LoraShrink has written before.
struct LinearExpand {
  LoraStep step;
  LoraTargets targets;
  bool beside = false;  // by LoraShrinkBeside, the launch before
};

// out [m, n] = x [m, k] · wᵀ + bias [n]; sums in f32. w [n, k] row-major.
struct LinearArgs {
  Type type = Type::kBF16;  // of x, w
  const void* x = nullptr;
  int m = 0;
  const void* w = nullptr;
  int n = 0;
  int k = 0;
  const float* bias = nullptr;  // null: none
  Type out_type = Type::kBF16;
  void* out = nullptr;
  // out [m, n / 2] = silu(a) · b, of what out would be: a its first half, b its second; asks for
  // Gates.
  bool gated = false;
  const LinearShrink* shrink = nullptr;  // null: none; asks for Shrinks
  const LinearExpand* expand = nullptr;  // null: none; ahead of `gated`; asks for Expands
  bool shares = false;  // leaves room and time for the kernel launched behind it; asks for LetsIn
};

// Chooses by shape and measures nothing: the same shape takes the same algorithm in every run, and
// up to 64 rows a row's bits do not depend on m. Any m, n, k; aligned rows (16 bytes) are fast. May
// be captured once a shape has run outside a capture. Owns cuBLASLt's handle and a workspace. *One
// stream at a time.*
class Linear {
 public:
  virtual ~Linear() = default;
  // f32 weights give f32. Empty on success, else why not (no such shape, a library's error).
  virtual std::string Run(const LinearArgs& args, cudaStream_t stream) = 0;
  // Whether Run takes args with `gated`.
  virtual bool Gates(const LinearArgs& args) const = 0;
  // Whether Run takes args with a `shrink`.
  virtual bool Shrinks(const LinearArgs& args) const = 0;
  // Whether Run takes args with an `expand`, and is the better for it.
  virtual bool Expands(const LinearArgs& args) const = 0;
  // SMs that Run(args) has work for so late that LoraShrinkBeside(`shrink`) may have them first; 0:
  // none. Of args with an `expand` that Run takes.
  virtual int SparesSms(const LinearArgs& args, const LoraTargets& shrink) const = 0;
  // Whether a dependent launch behind Run(args) may start while that runs, but never before the
  // kernels ahead of it have ended.
  virtual bool LetsIn(const LinearArgs& args) const = 0;
};

// On the current device. Null and `error` when cuBLASLt can't be set up.
std::unique_ptr<Linear> MakeLinear(std::string* error);

}  // namespace rootstock::kernels::cuda
