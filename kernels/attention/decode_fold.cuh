// Sums of tiles to the result of the decode kernel. Everything here is summed in an order that
// positions alone decide: tiles of a chunk, chunks of a span, spans of a row.
#pragma once

#include "kernels/attention/decode_schedule.cuh"
#include "kernels/attention/decode_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kWarps = kDecodeThreads / 32;
constexpr int kChunkSlots = 6;  // a block

// Unnormalised output of a few positions: 4 dims of one head. A thread has units threadIdx.x and
// threadIdx.x + 128 of the group's [heads, head_dim / 4].
struct Part {
  float top = kNoScore;
  float sum = 0.0f;
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};
};

// A struct: nvcc 13.0 leaves an array of arrays of Part uninitialised.
template <int kUnits>
struct PartsOf {
  Part unit[kUnits];
};

// into + x, `into` being to the left.
__device__ __forceinline__ void Merge(Part& into, const Part& x) {
  const float top = fmaxf(into.top, x.top);
  const float a = exp2f(into.top - top), b = exp2f(x.top - top);
  into.top = top;
  into.sum = fmaf(into.sum, a, x.sum * b);
  into.o.x = fmaf(into.o.x, a, x.o.x * b);
  into.o.y = fmaf(into.o.y, a, x.o.y * b);
  into.o.z = fmaf(into.o.z, a, x.o.z * b);
  into.o.w = fmaf(into.o.w, a, x.o.w * b);
}

// The four tiles of a chunk meet in shared memory, in two buffers by turns: one barrier a chunk.
template <int kDim>
class TileExchange {
 public:
  static constexpr int kStride = kDim + 8;  // floats a head
  static constexpr size_t Bytes(int group) {
    return 2 * kWarps * (size_t(group) * kStride * sizeof(float) + kMaxGroup * sizeof(float2));
  }
  __device__ TileExchange(void* memory, int group)
      : group_(group),
        sums_(static_cast<float*>(memory)),
        softmax_(reinterpret_cast<float2*>(sums_ + 2 * kWarps * group * kStride)) {}
  __device__ void* end() const { return softmax_ + 2 * kWarps * kMaxGroup; }

  __device__ __forceinline__ void Put(int turn, const TileSums<kDim>& sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int head = 2 * t + j;
      if (head >= group_) continue;
      float* to = Sums(turn, threadIdx.x / 32) + head * kStride + 8 * g;
#pragma unroll
      for (int h = 0; h < kDim / 64; ++h) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float (&x)[4] = sums.o[4 * h + i], (&y)[4] = sums.o[4 * h + i + 1];
          *reinterpret_cast<float4*>(to + 64 * h + 2 * i) =
              make_float4(x[j], x[j + 2], y[j], y[j + 2]);
        }
      }
      if (g == 0) Softmax(turn, threadIdx.x / 32)[head] = make_float2(sums.top[j], sums.sum[j]);
    }
  }
  __device__ __forceinline__ void PutNothing(int turn) {
    float* to = Sums(turn, threadIdx.x / 32);
    for (int i = threadIdx.x % 32; i < group_ * kStride; i += 32) to[i] = 0.0f;
    if (threadIdx.x % 32 < kMaxGroup) {
      Softmax(turn, threadIdx.x / 32)[threadIdx.x % 32] = make_float2(kNoScore, 0.0f);
    }
  }
  // The chunk's sum, after a barrier.
  template <int kUnits>
  __device__ __forceinline__ void Take(int turn, PartsOf<kUnits>& chunk) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
      if (head >= group_) continue;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 softmax = Softmax(turn, w)[head];
        const float* from = Sums(turn, w) + head * kStride + unit % (kDim / 4) * 4;
        Merge(chunk.unit[u], {softmax.x, softmax.y, *reinterpret_cast<const float4*>(from)});
      }
    }
  }

 private:
  __device__ float* Sums(int turn, int warp) const {
    return sums_ + ((turn & 1) * kWarps + warp) * group_ * kStride;
  }
  __device__ float2* Softmax(int turn, int warp) const {
    return softmax_ + ((turn & 1) * kWarps + warp) * kMaxGroup;
  }

  int group_;
  float* sums_;
  float2* softmax_;
};

// Where parts that several blocks sum meet.
struct FoldMemory {
  float4* sums;     // [slots, group, head_dim / 4]
  float2* softmax;  // [slots, group]: top, sum
  int* done;        // [rows, KV heads]: chunks in memory so far; 0 between runs
};

// Sums a block's chunks, piece by piece. Of a piece that is not a whole row, a span that lies
// within the block's share is kept as one part and the chunks of other spans one by one, so that
// whoever comes last sums them as one block would have.
template <int kDim, int kUnits>
class Fold {
 public:
  __device__ Fold(const FoldMemory& memory, const Shares& shares, const HeadShape& heads,
                  const int* tokens, __nv_bfloat16* out, int* scratch)
      : memory_(memory),
        shares_(shares),
        heads_(heads),
        group_(heads.num_heads / heads.num_kv_heads),
        tokens_(tokens),
        out_(out),
        scratch_(scratch) {}

  __device__ __forceinline__ void Add(const Piece& piece, int index, const PartsOf<kUnits>& chunk) {
    const int from = index & ~(kSpan - 1), to = min(from + kSpan, piece.chunks);
    if (from < piece.first || to > piece.last) {
      Store(ChunkSlot(piece.line + index), chunk);
      return;
    }
    MergeAll(span_, chunk);
    if (index + 1 < to) return;
    if (piece.whole()) {
      MergeAll(total_, span_);
    } else {
      Store(SpanSlot(piece, from), span_);
    }
    span_ = Parts();
    if (piece.whole() && to == piece.chunks) {
      Write(piece, total_);
      total_ = Parts();
    }
  }

  // After the last Add: of the block's pieces only these two may not be whole; they may be one.
  __device__ __forceinline__ void Finish(const Piece& front, const Piece& back) {
    if (front.whole() && back.whole()) return;
    const bool two = front.line != back.line;
    int* all = scratch_ + kBatch * kSpan;
    __syncthreads();
    if (threadIdx.x < 2) {
      Piece piece = back;
      if (threadIdx.x == 0) piece = front;
      all[threadIdx.x] = !piece.whole() && (threadIdx.x == 0 || two) && ArrivesLast(piece);
    }
    __syncthreads();
    if (all[0] != 0) Collect(front);
    if (all[1] != 0) Collect(back);
  }

 private:
  using Parts = PartsOf<kUnits>;
  static constexpr int kBatch = kUnits == 1 ? 4 : 2;  // spans whose parts are loaded together

  __device__ static void MergeAll(Parts& into, const Parts& x) {
    for (int u = 0; u < kUnits; ++u) Merge(into.unit[u], x.unit[u]);
  }

  // Chunks that are kept one by one lie within 3 of an end of their block's share.
  __device__ int ChunkSlot(int place) const {
    const int block = shares_.Owner(place);
    const int offset = place - shares_.Begin(block);
    const int left = shares_.Begin(block + 1) - 1 - place;
    return block * kChunkSlots + (offset < kSpan - 1 ? offset : kSpan - 1 + left);
  }
  __device__ int SpanSlot(const Piece& piece, int chunk) const {
    return shares_.blocks * kChunkSlots + (piece.line + chunk) / kSpan +
           piece.row * heads_.num_kv_heads + piece.kv_head;
  }

  __device__ void Store(int slot, const Parts& parts) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
      if (head >= group_) continue;
      memory_.sums[static_cast<size_t>(slot) * group_ * (kDim / 4) + unit] = parts.unit[u].o;
      if (unit % (kDim / 4) == 0) {
        memory_.softmax[slot * group_ + head] = make_float2(parts.unit[u].top, parts.unit[u].sum);
      }
    }
  }
  __device__ void Load(int slot, Parts& parts) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = threadIdx.x + u * kDecodeThreads, head = unit / (kDim / 4);
      if (head >= group_) continue;
      const float2 softmax = __ldcg(&memory_.softmax[slot * group_ + head]);
      parts.unit[u] = {softmax.x, softmax.y,
                  __ldcg(&memory_.sums[static_cast<size_t>(slot) * group_ * (kDim / 4) + unit])};
    }
  }

  // Are all chunks of the piece's row and KV head in memory now?
  __device__ bool ArrivesLast(const Piece& piece) {
    int* done = &memory_.done[piece.row * heads_.num_kv_heads + piece.kv_head];
    __threadfence();
    const bool last =
        atomicAdd(done, piece.last - piece.first) + piece.last - piece.first == piece.chunks;
    __threadfence();
    if (last) *done = 0;
    return last;
  }

  // Where the part of chunk first + threadIdx.x is, for the threads of a batch; -1: nowhere, or in
  // the part of its span, which is in the place of the span's first chunk.
  __device__ void FindSlots(const Piece& piece, int first) const {
    if (threadIdx.x >= kBatch * kSpan) return;
    const int chunk = first + threadIdx.x, from = chunk & ~(kSpan - 1);
    const int last = min(from + kSpan, piece.chunks) - 1;
    int slot = -1;
    if (chunk <= last) {
      const bool one = shares_.Owner(piece.line + from) == shares_.Owner(piece.line + last);
      slot = !one ? ChunkSlot(piece.line + chunk) : chunk == from ? SpanSlot(piece, from) : -1;
    }
    scratch_[threadIdx.x] = slot;
  }

  __device__ void Collect(const Piece& piece) {
    Parts total;
    for (int first = 0; first < piece.chunks; first += kBatch * kSpan) {
      __syncthreads();
      FindSlots(piece, first);
      __syncthreads();
      Parts parts[kBatch * kSpan];
#pragma unroll
      for (int i = 0; i < kBatch * kSpan; ++i) {
        if (scratch_[i] >= 0) Load(scratch_[i], parts[i]);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        Parts span;
#pragma unroll
        for (int i = 0; i < kSpan; ++i) MergeAll(span, parts[b * kSpan + i]);
        MergeAll(total, span);
      }
    }
    Write(piece, total);
  }

  __device__ void Write(const Piece& piece, const Parts& parts) const {
    const size_t head =
        static_cast<size_t>(tokens_[piece.row]) * heads_.num_heads + piece.kv_head * group_;
    uint2* out = reinterpret_cast<uint2*>(out_ + head * kDim);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = threadIdx.x + u * kDecodeThreads;
      if (unit >= group_ * (kDim / 4)) continue;
      const float inverse = 1.0f / parts.unit[u].sum;
      const float4 o = parts.unit[u].o;
      const __nv_bfloat162 low = __floats2bfloat162_rn(o.x * inverse, o.y * inverse);
      const __nv_bfloat162 high = __floats2bfloat162_rn(o.z * inverse, o.w * inverse);
      out[unit] = {*reinterpret_cast<const uint32_t*>(&low),
                   *reinterpret_cast<const uint32_t*>(&high)};
    }
  }

  FoldMemory memory_;
  Shares shares_;
  HeadShape heads_;
  int group_;
  const int* tokens_;  // [rows], shared memory
  __nv_bfloat16* out_;
  int* scratch_;  // [kScheduleScratch], shared memory
  Parts span_, total_;
};

}  // namespace rootstock::kernels::cuda
