// How a kernel of long steps walks the (tile, piece of columns) pairs of a projection with
// expand_stream.cuh: a block's share is contiguous, pieces run fastest, and what the next step of a
// tile needs is on its way while this one is computed.
#pragma once

#include "kernels/lora/expand_stream.cuh"

namespace rootstock::kernels::cuda {

// For kernels of kStreamThreads threads, any grid and StreamShared<kParts> of shared memory; in
// [num_tokens, width]. Of `op` it calls, for a piece of columns,
//   Column(piece, part): the first of 64 of the projection's columns,
//   SetTokens(token, token): those of the lane's sums; after the wait,
//   Apply(piece, sums): makes of all parts what goes out, in the first kOut parts,
//   Out(token, piece, part): where those 64 values go.
template <int kParts, int kTargets, int kOut, typename Op>
class StreamWalk {
  using Expand = ExpandStream<kParts, kTargets>;
  using Pieces = ExpandPiece[kParts];

 public:
  __device__ StreamWalk(const LoraStep& step, const LoraTargets& targets, const __nv_bfloat16* in,
                        int width, Op& op, StreamShared<kParts>& shared)
      : step_(step),
        targets_(targets),
        in_(in),
        width_(width),
        op_(op),
        shared_(shared),
        expand_(step, targets, shared) {}

  // All threads of the grid call it, before they wait for the kernel before.
  __device__ __forceinline__ void Run(int num_tokens, int num_pieces) {
    const int64_t pairs = int64_t{NumTiles<true>(step_, num_tokens)} * num_pieces;
    int at = static_cast<int>(pairs * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(pairs * (blockIdx.x + 1) / gridDim.x);
    while (at < end) {
      const LoraTile tile = TileAt<true>(step_, num_tokens, at / num_pieces);
      const int piece = at % num_pieces;
      const int run = min(end - at, num_pieces - piece);
      RunTile(tile, piece, piece + run);
      at += run;
    }
  }

 private:
  // Pieces [piece, last) of a tile.
  __device__ __forceinline__ void RunTile(const LoraTile& tile, int piece, int last) {
    expand_.SetTile(tile);
    op_.SetTokens(shared_.token[Expand::Slot()], shared_.token[Expand::Slot() + 8]);
    copy_piece_ = piece, copy_chunk_ = 0, last_ = last;
    Copy(0);
    int stage = 0;
#pragma unroll 1
    for (; piece < last; ++piece) {
      Pieces pieces;
      SetPieces(piece, pieces);
      const int chunks = expand_.Chunks(pieces);
      StreamSums<kParts> sums;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk, stage ^= 1) {
        Copy(stage ^ 1);
        WaitForCopies<1>();
        __syncthreads();
        if (chunk == 0) Load(stage, sums);
        expand_.Multiply(stage, pieces, chunk, sums);
        if (chunk + 1 == chunks) {
          expand_.AddStacked(pieces, sums);
          op_.Apply(piece, sums);
          Store(stage, tile.count, piece, sums);
        }
        __syncthreads();
      }
    }
    WaitForCopies<0>();
  }

  __device__ __forceinline__ void SetPieces(int piece, Pieces& pieces) const {
#pragma unroll
    for (int p = 0; p < kParts; ++p) pieces[p] = PieceAt(targets_, op_.Column(piece, p));
  }

  // A lane's share of its warp's tokens: chunk of 8 columns Chunk() of every fourth.
  static __device__ __forceinline__ int FirstSlot() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 8;
  }
  static __device__ __forceinline__ int Chunk() { return threadIdx.x % 8; }

  // The next chunk of ranks of Bᵀ, and with the first of a piece the projection's values.
  __device__ __forceinline__ void Copy(int stage) {
    if (copy_piece_ < last_) {
      Pieces pieces;
      SetPieces(copy_piece_, pieces);
      expand_.CopyB(stage, pieces, copy_chunk_);
      if (copy_chunk_ == 0) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
          const int slot = FirstSlot() + i;
          const auto* row = in_ + static_cast<size_t>(shared_.token[slot]) * width_ + Chunk() * 8;
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            CopyAsync16(SharedAddress(&shared_.stage[stage].in[p][slot][Chunk()]),
                        row + op_.Column(copy_piece_, p), true);
          }
        }
      }
      if (++copy_chunk_ == expand_.Chunks(pieces)) copy_chunk_ = 0, ++copy_piece_;
    }
    CommitCopies();
  }

  // Word n of a token's columns 8n + 2q and the next.
  __device__ __forceinline__ uint32_t* Words(int stage, int p, int e) const {
    auto* row = shared_.stage[stage].in[p][Expand::Slot() + 8 * e];
    return reinterpret_cast<uint32_t*>(row) + Expand::Quad();
  }
  __device__ __forceinline__ void Load(int stage, StreamSums<kParts>& sums) const {
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float2 x = UnpackBf16(Words(stage, p, e)[4 * n]);
          sums[p][n][2 * e] = x.x, sums[p][n][2 * e + 1] = x.y;
        }
  }
  // By way of where the values were, so that 8 lanes write 128 bytes.
  __device__ __forceinline__ void Store(int stage, int count, int piece,
                                        const StreamSums<kParts>& sums) const {
#pragma unroll
    for (int p = 0; p < kOut; ++p)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          Words(stage, p, e)[4 * n] = PackBf16(sums[p][n][2 * e], sums[p][n][2 * e + 1]);
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const int slot = FirstSlot() + i;
      if (slot >= count) continue;
#pragma unroll
      for (int p = 0; p < kOut; ++p) {
        auto* out = reinterpret_cast<uint4*>(op_.Out(shared_.token[slot], piece, p));
        out[Chunk()] = shared_.stage[stage].in[p][slot][Chunk()];
      }
    }
  }

  const LoraStep& step_;
  const LoraTargets& targets_;
  const __nv_bfloat16* in_;
  int width_;
  Op& op_;
  StreamShared<kParts>& shared_;
  Expand expand_;
  int copy_piece_ = 0, copy_chunk_ = 0, last_ = 0;
};

template <int kParts, int kTargets, int kOut, typename Op>
__device__ __forceinline__ void WalkStream(const LoraStep& step, const LoraTargets& targets,
                                           int num_tokens, int num_pieces, const __nv_bfloat16* in,
                                           int width, Op& op) {
  extern __shared__ uint4 stream_shared[];
  auto& shared = *reinterpret_cast<StreamShared<kParts>*>(stream_shared);
  GridLaunchDependents();
  StreamWalk<kParts, kTargets, kOut, Op> walk(step, targets, in, width, op, shared);
  walk.Run(num_tokens, num_pieces);
  if (blockIdx.x == 0) GridDependencyWait();
}

}  // namespace rootstock::kernels::cuda
