// Linear layers of long steps by our own kernel, with LoRA's expand and silu(gate) · up inside.
#pragma once

#include <memory>
#include <string>

#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

class PrefillLinear {
 public:
  // Null and no error before sm_90: the kernel is not for that GPU.
  static std::unique_ptr<PrefillLinear> Create(std::string* error);

  // bf16 of more than kDecodeTokens rows, rows on 16 bytes; targets of `expand` and halves of
  // `gated` on tiles' halves.
  static bool Takes(const LinearArgs& args);

  // Whether it is the best for a shape that it takes: by what it saves beside the product and by
  // how much of its last round of tiles is used.
  static bool Suits(const LinearArgs& args);

  // As Linear's.
  static int SparesSms(const LinearArgs& args, const LoraTargets& shrink);

  // Takes(args) must hold. A dependent launch (kernels/cuda/pdl.cuh). Empty, or the error.
  std::string Run(const LinearArgs& args, cudaStream_t stream) const;

 private:
  explicit PrefillLinear(void* encode) : encode_(encode) {}

  void* encode_;  // the driver's cuTensorMapEncodeTiled
};

}  // namespace rootstock::kernels::cuda
