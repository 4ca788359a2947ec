// Programmatic dependent launch, the kernel's side (launch.h is the host's). Nothing before sm_90.
//
// A kernel launched with LaunchDependent may start while the kernel before it in the stream still
// runs. So
//  * every block of it calls GridDependencyWait before it reads or writes anything that an earlier
//    kernel touches. One block at least (0) calls it in any case before it ends: a kernel that
//    skips the wait lets the one after it overtake the one before it. Blocks without work may end
//    at once and so make room for the kernel after it. Weights, which no kernel writes, may be read
//    first.
//    A kernel whose blocks all wait before they call GridLaunchDependents starts the next one when
//    those ahead of it have ended: what these wrote, the next one may read before its own wait,
//    past the first cache (LoadL2), and what these read it may write.
//  * GridLaunchDependents allows the next kernel to start once every block has called it or ended.
//    It promises nothing about memory: the next kernel's wait is for the end of this grid.
#pragma once

namespace rootstock::kernels::cuda {

// Returns when the earlier kernels of the stream have ended and what they wrote can be read.
__device__ __forceinline__ void GridDependencyWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void GridLaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace rootstock::kernels::cuda
