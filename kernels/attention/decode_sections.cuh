// Where parts of rows that several blocks of the decode kernel sum meet: see decode_fold.cuh.
#pragma once

#include "kernels/attention/decode_schedule.cuh"

namespace rootstock::kernels::cuda {

constexpr int kSpan = 4;                          // chunks
constexpr int kSection = 32;                      // chunks
constexpr int kChunkSlots = 6;                    // a block
constexpr int kSpanSlots = 2 * kSection / kSpan;  // a block

// Where parts that several blocks sum meet. Slots: of chunks, then of spans, then of sections.
struct FoldMemory {
  float4* sums;       // [slots, group, head_dim / 4]
  float2* softmax;    // [slots, group]: top, sum
  int* section_done;  // [sections]: chunks in memory so far; 0 between runs
  int* row_done;      // [rows, KV heads]: sections in memory so far; 0 between runs
  int section_slots;  // first slot of sections
};

// A section of a row, as far as a block has chunks of it.
struct SectionShare {
  int from, to;  // chunks of the section
  int mine;      // of them, the block's

  __device__ SectionShare(const Piece& piece, int chunk)
      : from(chunk & ~(kSection - 1)),
        to(min(from + kSection, piece.chunks)),
        mine(min(to, piece.last) - max(from, piece.first)) {}
  __device__ bool whole() const { return mine == to - from; }
};

}  // namespace rootstock::kernels::cuda
