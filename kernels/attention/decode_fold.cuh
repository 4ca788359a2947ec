// Sums of chunks to the result of the decode kernel, in an order that positions alone decide:
// chunks of a span, spans of a section, sections of a row, each from left to right.
#pragma once

#include "kernels/attention/decode_parts.cuh"
#include "kernels/attention/decode_schedule.cuh"
#include "kernels/attention/decode_sections.cuh"

namespace rootstock::kernels::cuda {

// Sums a block's chunks, piece by piece. What lies within the block's share is summed as far as
// the order allows; the rest goes to memory, and whoever comes last sums it as one block would
// have.
template <int kDim, int kUnits>
class Fold {
 public:
  __device__ Fold(const FoldMemory& memory, const Shares& shares, const Schedule& schedule,
                  const HeadShape& heads, __nv_bfloat16* out)
      : memory_(memory),
        shares_(shares),
        heads_(heads),
        group_(heads.num_heads / heads.num_kv_heads),
        tokens_(schedule.token),
        out_(out),
        scratch_(schedule.scratch),
        shift_(schedule.shift) {}

  __device__ __forceinline__ void Add(const Piece& piece, int index, const PartsOf<kUnits>& chunk) {
    const int from = index & ~(kSpan - 1), to = min(from + kSpan, piece.chunks);
    if (from < piece.first || to > piece.last) {
      Store(ChunkSlot(piece, index), chunk);
      return;
    }
    MergeAll(span_, chunk);
    if (index + 1 < to) return;
    const SectionShare section(piece, index);
    if (section.whole()) {
      MergeAll(section_, span_);
      if (to == section.to) EndSection(piece, section);
    } else {
      Store(SpanSlot(blockIdx.x, section.from < piece.first, from), span_);
    }
    span_ = Parts();
  }

  // After the last Add. `front` and `back`, which may be one, are the block's first and last
  // piece: no other piece or section than their ends is shared with other blocks.
  __device__ __forceinline__ void Finish(const Piece& front, const Piece& back) {
    if (front.whole() && back.whole()) return;
    const SectionShare first(front, front.first), last(back, back.last - 1);
    const bool one_row = front.line == back.line;
    const bool two = !last.whole() && !(one_row && first.from == last.from);
    int* all = scratch_ + 2 * kSection;
    int* front_slots = scratch_;
    int* back_slots = scratch_ + kSection;
    __syncthreads();
    // While the counters are on their way.
    if (threadIdx.x / 32 == 2) FindSlots(front, first.from, first.to, front_slots);
    if (threadIdx.x / 32 == 3) FindSlots(back, last.from, last.to, back_slots);
    if (threadIdx.x == 0) all[0] = !first.whole() && SectionArrives(front, first);
    if (threadIdx.x == 32) all[1] = two && SectionArrives(back, last);
    __syncthreads();
    const bool first_done = all[0] != 0, last_done = all[1] != 0;
    if constexpr (kUnits == 1) {
      if (first_done) CollectSection(front, first, front_slots);
      if (last_done) CollectSection(back, last, back_slots);
    } else {
#pragma unroll 1
      for (int side = first_done ? 0 : 1; side < (last_done ? 2 : 1); ++side) {
        CollectUnits(side == 0 ? front : back, side == 0 ? first : last,
                     side == 0 ? front_slots : back_slots);
      }
    }
    // Rows of several sections.
    const int in_front = InMemory(front) + first_done + (one_row ? last_done : 0);
    const int in_back = one_row ? 0 : InMemory(back) + last_done;
    const bool front_counts = front.chunks > kSection && !front.whole() && in_front > 0;
    const bool back_counts = back.chunks > kSection && !back.whole() && in_back > 0;
    if (!front_counts && !back_counts) return;
    __syncthreads();
    if (threadIdx.x == 0) all[0] = front_counts && RowArrives(front, in_front);
    if (threadIdx.x == 1) all[1] = back_counts && RowArrives(back, in_back);
    __syncthreads();
    if (all[0] != 0) CollectRow(front);
    if (all[1] != 0) CollectRow(back);
  }

 private:
  using Parts = PartsOf<kUnits>;
  static constexpr int kAhead = 4;  // spans on their way

  __device__ static void MergeAll(Parts& into, const Parts& x) {
    for (int u = 0; u < kUnits; ++u) Merge(into.unit[u], x.unit[u]);
  }
  __device__ int Head(const Piece& piece) const {
    return piece.row * heads_.num_kv_heads + piece.kv_head;
  }

  __device__ int PlaceOf(const Piece& piece, int chunk) const {
    return piece.line + (chunk << shift_);
  }
  // Of a chunk that is kept alone: its span began in an earlier block, or ends in a later one. So
  // it lies within 3 of an end of its block's share.
  __device__ int ChunkSlot(const Piece& piece, int chunk) const {
    const int place = PlaceOf(piece, chunk), block = shares_.Owner(place);
    const bool front = shares_.Owner(PlaceOf(piece, chunk & ~(kSpan - 1))) != block;
    const int offset = front ? (place - shares_.Begin(block)) >> shift_
                             : kSpan - 1 + ((shares_.Begin(block + 1) - 1 - place) >> shift_);
    return block * kChunkSlots + offset;
  }
  // Of a span that is kept alone by `block`: its section began in an earlier block (front), or ends
  // in a later one. A block has one section of each kind at most.
  __device__ int SpanSlot(int block, bool front, int chunk) const {
    return shares_.blocks * kChunkSlots + block * kSpanSlots + (front ? 0 : kSection / kSpan) +
           chunk % kSection / kSpan;
  }
  // Unique since the next row and head begins a whole number further.
  __device__ int SectionIndex(const Piece& piece, int chunk) const {
    return (PlaceOf(piece, chunk) >> shift_) / kSection + Head(piece);
  }

  __device__ void StoreUnit(int slot, int u, const Part& part) {
    const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
    if (head >= group_) return;
    memory_.sums[static_cast<size_t>(slot) * group_ * (kDim / 4) + unit] = part.o;
    if (unit % (kDim / 4) == 0) {
      memory_.softmax[slot * group_ + head] = make_float2(part.top, part.sum);
    }
  }
  __device__ void LoadUnit(int slot, int u, Part& part) const {
    const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
    if (head >= group_) return;
    const float2 softmax = __ldcg(&memory_.softmax[slot * group_ + head]);
    part = {softmax.x, softmax.y,
            __ldcg(&memory_.sums[static_cast<size_t>(slot) * group_ * (kDim / 4) + unit])};
  }
  __device__ void Store(int slot, const Parts& parts) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) StoreUnit(slot, u, parts.unit[u]);
  }
  __device__ void Load(int slot, Parts& parts) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) LoadUnit(slot, u, parts.unit[u]);
  }

  __device__ void EndSection(const Piece& piece, const SectionShare& section) {
    if (piece.whole()) {
      MergeAll(total_, section_);
      if (section.to == piece.chunks) {
        Write(piece, total_);
        total_ = Parts();
      }
    } else {
      Store(memory_.section_slots + SectionIndex(piece, section.from), section_);
    }
    section_ = Parts();
  }

  // Sections of the piece that EndSection stored.
  __device__ static int InMemory(const Piece& piece) {
    const int first = (piece.first + kSection - 1) / kSection;
    const int last =
        piece.last == piece.chunks ? (piece.last + kSection - 1) / kSection : piece.last / kSection;
    return max(last - first, 0);
  }

  // Adds to a count of what is in memory; true, and 0 again, when all is. What the block stored
  // before its last barrier is seen by whoever comes later.
  __device__ static bool Arrives(int* done, int more, int all) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(done), "r"(more)
                 : "memory");
    if (before + more == all) *done = 0;
    return before + more == all;
  }
  __device__ bool SectionArrives(const Piece& piece, const SectionShare& section) {
    return Arrives(&memory_.section_done[SectionIndex(piece, section.from)], section.mine,
                   section.to - section.from);
  }
  __device__ bool RowArrives(const Piece& piece, int sections) {
    return Arrives(&memory_.row_done[Head(piece)], sections,
                   (piece.chunks + kSection - 1) / kSection);
  }

  // Where the parts of a section's chunks are, by a warp. -1: nowhere, or in the part of the
  // chunk's span, which is in the place of the span's first chunk.
  __device__ void FindSlots(const Piece& piece, int first, int end, int* slots) const {
    const int lane = threadIdx.x % 32, chunk = first + lane, from = chunk & ~(kSpan - 1);
    const int last = min(from + kSpan, end) - 1;
    const int owner = shares_.Owner(PlaceOf(piece, from));
    const bool front = __shfl_sync(~0u, owner, 0) != owner;  // lane 0 has the section's first chunk
    int slot = -1;
    if (chunk <= last) {
      const bool one = owner == shares_.Owner(PlaceOf(piece, last));
      if (!one) slot = ChunkSlot(piece, chunk);
      if (one && chunk == from) slot = SpanSlot(owner, front, from);
    }
    slots[lane] = slot;
  }

  __device__ void LoadSpan(const int* slots, Parts (&parts)[kSpan]) const {
#pragma unroll
    for (int i = 0; i < kSpan; ++i) {
      parts[i] = Parts();
      if (slots[i] >= 0) Load(slots[i], parts[i]);
    }
  }

  // kAhead spans are on their way while one is summed.
  __device__ void CollectSection(const Piece& piece, const SectionShare& section,
                                 const int* slots) {
    Parts sum;
    Parts parts[kAhead][kSpan];
#pragma unroll
    for (int b = 0; b < kAhead; ++b) LoadSpan(slots + b * kSpan, parts[b]);
#pragma unroll
    for (int b = 0; b < kSection / kSpan; ++b) {
      if (section.from + b * kSpan >= section.to) break;
      Parts span;
#pragma unroll
      for (int i = 0; i < kSpan; ++i) MergeAll(span, parts[b % kAhead][i]);
      MergeAll(sum, span);
      if (b + kAhead < kSection / kSpan) {
        LoadSpan(slots + (b + kAhead) * kSpan, parts[b % kAhead]);
      }
    }
    if (piece.chunks <= kSection) {
      Write(piece, sum);
    } else {
      Store(memory_.section_slots + SectionIndex(piece, section.from), sum);
    }
  }

  // The same of several units, one after the other: for a thread's two at once there are registers
  // for half as many spans, and the code, which comes from memory that weights stream through, is
  // two and a half times as long (a row of one KV head took 20 µs instead of 10). Empty parts leave
  // a sum as it is, to the bit.
  __device__ void CollectUnits(const Piece& piece, const SectionShare& section, const int* slots) {
    const int spans = (section.to - section.from + kSpan - 1) / kSpan;
#pragma unroll 1
    for (int u = 0; u < kUnits; ++u) {
      Part sum;
#pragma unroll 1
      for (int first = 0; first < spans; first += kAhead) {
        Part parts[kAhead * kSpan];
#pragma unroll
        for (int i = 0; i < kAhead * kSpan; ++i) {
          const int slot = slots[first * kSpan + i];
          if (slot >= 0) LoadUnit(slot, u, parts[i]);
        }
#pragma unroll
        for (int b = 0; b < kAhead; ++b) {
          Part span;
#pragma unroll
          for (int i = 0; i < kSpan; ++i) Merge(span, parts[b * kSpan + i]);
          Merge(sum, span);
        }
      }
      if (piece.chunks <= kSection) {
        WriteUnit(piece, u, sum);
      } else {
        StoreUnit(memory_.section_slots + SectionIndex(piece, section.from), u, sum);
      }
    }
  }

  __device__ void CollectRow(const Piece& piece) {
    const int slot = memory_.section_slots + SectionIndex(piece, 0);
    const int sections = (piece.chunks + kSection - 1) / kSection;
    Parts total;
    for (int first = 0; first < sections; first += kSpan) {
      Parts parts[kSpan];
#pragma unroll
      for (int i = 0; i < kSpan; ++i) {
        if (first + i < sections) Load(slot + first + i, parts[i]);
      }
#pragma unroll
      for (int i = 0; i < kSpan; ++i) MergeAll(total, parts[i]);
    }
    Write(piece, total);
  }

  __device__ void WriteUnit(const Piece& piece, int u, const Part& part) const {
    const size_t head =
        static_cast<size_t>(tokens_[piece.row]) * heads_.num_heads + piece.kv_head * group_;
    uint2* out = reinterpret_cast<uint2*>(out_ + head * kDim);
    const int unit = threadIdx.x + u * kDecodeThreads;
    if (unit >= group_ * (kDim / 4)) return;
    const float inverse = 1.0f / part.sum;
    const float4 o = part.o;
    const __nv_bfloat162 low = __floats2bfloat162_rn(o.x * inverse, o.y * inverse);
    const __nv_bfloat162 high = __floats2bfloat162_rn(o.z * inverse, o.w * inverse);
    out[unit] = {*reinterpret_cast<const uint32_t*>(&low),
                 *reinterpret_cast<const uint32_t*>(&high)};
  }
  __device__ void Write(const Piece& piece, const Parts& parts) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) WriteUnit(piece, u, parts.unit[u]);
  }

  FoldMemory memory_;
  Shares shares_;
  HeadShape heads_;
  int group_;
  const int* tokens_;  // [rows], shared memory
  __nv_bfloat16* out_;
  int* scratch_;  // [kScheduleScratch], shared memory
  int shift_;
  Parts span_, section_, total_;
};

}  // namespace rootstock::kernels::cuda
