// Which chunks of which rows a block of the decode kernel takes.
#pragma once

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kWarps = kDecodeThreads / 32;
constexpr int kTile = 16;      // positions of a warp
constexpr int kChunk = 64;     // positions: a tile for each warp
constexpr int kTileShift = 2;  // log2 of a chunk's tiles
constexpr int kScheduleScratch = 66;

// Chunks of all rows in a line: rows, then KV heads, then positions. A place of the line is a tile,
// or a chunk: a row's last chunk may be nearly empty, so tiles measure the work better; but while
// there is a block for every chunk no block should take two. In shared memory.
struct Schedule {
  int* places_before;  // [rows + 1]: places of one KV head in rows before
  int* kv_len;         // [rows]
  int* page_begin;     // [rows]
  int* token;          // [rows]
  int* scratch;        // [kScheduleScratch], on 8 bytes
  int shift = 0;       // a whole chunk has 1 << shift places
};

constexpr size_t ScheduleBytes(int rows) {
  return sizeof(int) * (4 * size_t(rows) + 1 + kScheduleScratch);
}

// memory: ScheduleBytes(rows), on 8 bytes.
__device__ inline Schedule ScheduleAt(void* memory, int rows) {
  int* scratch = static_cast<int*>(memory);
  int* ints = scratch + kScheduleScratch;
  return {ints, ints + rows + 1, ints + 2 * rows + 1, ints + 3 * rows + 1, scratch};
}

__device__ __forceinline__ int ChunksOf(int kv_len) { return (kv_len + kChunk - 1) / kChunk; }
__device__ __forceinline__ int PlacesOf(const Schedule& s, int kv_len) {
  return s.shift == 0 ? ChunksOf(kv_len) : (kv_len + kTile - 1) / kTile;
}

// Chunks that begin in the first `places` places of a row and KV head.
__device__ __forceinline__ int ChunksWithin(const Schedule& s, int places) {
  return (places + (1 << s.shift) - 1) >> s.shift;
}

// Sums over the threads before this one, and over all threads; ends with a barrier.
__device__ inline int2 SumBefore(int2 own, int* scratch, int2& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(~0u, sum.x, step), y = __shfl_up_sync(~0u, sum.y, step);
    if (lane >= step) sum = {sum.x + x, sum.y + y};
  }
  int2* of_warps = reinterpret_cast<int2*>(scratch);
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  sum = {sum.x - own.x, sum.y - own.y};
  all = {0, 0};
  for (int w = 0; w < kWarps; ++w) {
    const int2 x = of_warps[w];
    if (w < warp) sum = {sum.x + x.x, sum.y + x.y};
    all = {all.x + x.x, all.y + x.y};
  }
  return sum;
}

// Reads the rows of the step; ends with a barrier.
__device__ inline void ReadSchedule(const AttentionRows& rows, int num_rows, int kv_heads,
                                    Schedule& s) {
  const int each = (num_rows + kDecodeThreads - 1) / kDecodeThreads;
  const int first = threadIdx.x * each, last = min(first + each, num_rows);
  int2 own = {0, 0}, all;  // chunks, tiles
  for (int r = first; r < last; ++r) {
    const int token = rows.q_begin[r], kv_len = rows.kv_len[r];
    s.token[r] = token;
    s.kv_len[r] = kv_len;
    s.page_begin[r] = rows.page_begin[r];
    const bool ours = rows.q_begin[r + 1] - token == 1;
    s.places_before[r + 1] = ours ? kv_len : 0;
    if (ours) own = {own.x + ChunksOf(kv_len), own.y + (kv_len + kTile - 1) / kTile};
  }
  const int2 before = SumBefore(own, s.scratch, all);
  const unsigned long long products = 1ull * gridDim.x * all.y * kv_heads;  // of Shares
  if (all.x * kv_heads > gridDim.x && products >> 32 == 0) s.shift = kTileShift;
  int sum = s.shift == 0 ? before.x : before.y;
  for (int r = first; r < last; ++r) {
    sum += PlacesOf(s, s.places_before[r + 1]);
    s.places_before[r + 1] = sum;
  }
  if (threadIdx.x == 0) s.places_before[0] = 0;
  __syncthreads();
}

// A chunk in the line.
struct Cursor {
  int row, kv_head, chunk;
  int chunks, places;  // of the row and KV head
  int line;            // place of their chunk 0

  __device__ int place(const Schedule& s) const { return line + (chunk << s.shift); }
};

__device__ __forceinline__ void EnterRow(const Schedule& s, int num_rows, Cursor& c) {
  c.places = c.row < num_rows ? s.places_before[c.row + 1] - s.places_before[c.row] : 1;
  c.chunks = ChunksWithin(s, c.places);
}

// Past the last chunk: row num_rows.
__device__ __forceinline__ void Advance(const Schedule& s, int num_rows, int kv_heads, Cursor& c) {
  if (++c.chunk < c.chunks) return;
  c.chunk = 0;
  c.line += c.places;
  if (++c.kv_head < kv_heads) return;
  c.kv_head = 0;
  do {
    ++c.row;
    EnterRow(s, num_rows, c);
  } while (c.places == 0);
}

// The first chunk that begins at `place` or after it.
__device__ inline Cursor CursorAt(const Schedule& s, int num_rows, int kv_heads, int place) {
  int low = 0, high = num_rows;  // the last row that begins at or before the place
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.places_before[middle] * kv_heads <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  Cursor c;
  c.row = low;
  EnterRow(s, num_rows, c);
  const int before = s.places_before[low] * kv_heads;
  c.kv_head = (place - before) / c.places;
  c.line = before + c.kv_head * c.places;
  c.chunk = ChunksWithin(s, place - c.line) - 1;
  Advance(s, num_rows, kv_heads, c);
  return c;
}

// Equal shares of the line: block i of `blocks` has the chunks that begin at floor(i · total /
// blocks) … before the next block's. total · blocks fits 32 bits.
struct Shares {
  unsigned total, blocks;
  __device__ int Begin(unsigned block) const { return static_cast<int>(block * total / blocks); }
  __device__ int Owner(unsigned place) const {
    return static_cast<int>(((place + 1) * blocks - 1) / total);
  }
};

// Chunks of one row and KV head that a block takes one after another.
struct Piece {
  int row, kv_head;
  int chunks;       // of the row
  int first, last;  // the block's: first … last - 1
  int line;         // place of the row's chunk 0

  __device__ bool whole() const { return first == 0 && last == chunks; }
};

// From c on, where the block's share ends at place `end`.
__device__ __forceinline__ Piece PieceAt(const Schedule& s, const Cursor& c, int end) {
  return {c.row, c.kv_head, c.chunks, c.chunk, min(c.chunks, ChunksWithin(s, end - c.line)),
          c.line};
}

}  // namespace rootstock::kernels::cuda
