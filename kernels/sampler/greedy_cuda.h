// The launch of steps whose rows are all plain greedy.
#pragma once

#include "kernels/sampler/sampler_cuda.h"

namespace rootstock::kernels::cuda {

// step.greedy_only holds.
void SampleGreedy(const SampleStep& step, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
