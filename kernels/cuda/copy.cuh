// Copies from global to shared memory that no thread waits for at once, from sm_80 on.
#pragma once

#include <cstdint>

namespace rootstock::kernels::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes, aligned to 16; zeros if not `live` (`from` must be some valid address even then).
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(live ? 16 : 0)
               : "memory");
}

// Ends a group of the thread's copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the thread's last `kOpen` groups are there.
template <int kOpen>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

}  // namespace rootstock::kernels::cuda
