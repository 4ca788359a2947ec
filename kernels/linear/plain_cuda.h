// Linear layers of any shape and alignment, slowly.
#pragma once

#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

// A sum runs over k in order, whatever m: a row's bits do not depend on the other rows. Takes every
// shape and type.
cudaError_t PlainLinear(const LinearArgs& args, cudaStream_t stream);

// out[i] = in[i], rounded to bf16.
cudaError_t RoundToBf16(const float* in, int n, void* out, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
