// Few values of a row, from all its blocks into the first.
#pragma once

#include "kernels/sampler/row_scan.cuh"

namespace rootstock::kernels::cuda {

// The values that a cut keeps, but for those above `highest`, as entries in any order, into the
// first block's `all` [kFew]. Returns how many; nothing is sent where they are more than kFew.
__device__ inline int GatherKept(RowGroup& group, const Chunk& chunk, Cut cut, uint64_t* all,
                                 float highest = INFINITY) {
  auto* list = reinterpret_cast<uint64_t*>(chunk.shared->histogram);  // its search is over
  int& count = chunk.shared->count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  ForEachFour(chunk, [&](const float4& v, int i) {
    if (fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) < cut.above) return;
    const auto put = [&](float x, int at) {
      if (at >= chunk.count || x > highest || !cut.Keeps(x, chunk.first + at)) return;
      const int place = atomicAdd(&count, 1);
      if (place < kFew) list[place] = Entry(x, chunk.first + at);
    };
    put(v.x, i);
    put(v.y, i + 1);
    put(v.z, i + 2);
    put(v.w, i + 3);
  });
  __syncthreads();
  const int own = count;
  const double* counts = group.Gather(threadIdx.x == 0 ? static_cast<double>(own) : 0.0, Add());
  int before = 0, n = 0;
#pragma unroll 1
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) before = n;
    n += static_cast<int>(counts[r]);
  }
  if (n <= kFew) group.SendList(list, own, all, before, n);
  return n;
}

}  // namespace rootstock::kernels::cuda
