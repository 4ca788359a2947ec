// Which chunks of which rows a block of the decode kernel takes.
#pragma once

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kChunk = 64;  // positions: a tile for each warp
constexpr int kScheduleScratch = 40;

// Chunks of all rows in a line: rows, then KV heads, then positions. In shared memory.
struct Schedule {
  int* chunks_before;  // [rows + 1]: chunks of one KV head in rows before
  int* kv_len;         // [rows]
  int* page_begin;     // [rows]
  int* token;          // [rows]
  int* scratch;        // [kScheduleScratch]
};

constexpr size_t ScheduleBytes(int rows) {
  return sizeof(int) * (4 * size_t(rows) + 1 + kScheduleScratch);
}

__device__ inline Schedule ScheduleAt(void* memory, int rows) {
  int* ints = static_cast<int*>(memory);
  return {ints, ints + rows + 1, ints + 2 * rows + 1, ints + 3 * rows + 1, ints + 4 * rows + 1};
}

// Reads the rows of the step; ends with a barrier.
__device__ inline void ReadSchedule(const AttentionRows& rows, int num_rows, const Schedule& s) {
  const int each = (num_rows + kDecodeThreads - 1) / kDecodeThreads;
  const int first = threadIdx.x * each, last = min(first + each, num_rows);
  int chunks = 0;
  for (int r = first; r < last; ++r) {
    const int token = rows.q_begin[r], kv_len = rows.kv_len[r];
    const bool ours = rows.q_begin[r + 1] - token == 1;
    s.token[r] = token;
    s.kv_len[r] = kv_len;
    s.page_begin[r] = rows.page_begin[r];
    chunks += ours ? (kv_len + kChunk - 1) / kChunk : 0;
    s.chunks_before[r + 1] = chunks;
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = chunks;
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += x;
  }
  if (lane == 31) s.scratch[warp] = before;
  __syncthreads();
  before -= chunks;
  for (int w = 0; w < warp; ++w) before += s.scratch[w];
  for (int r = first; r < last; ++r) s.chunks_before[r + 1] += before;
  if (threadIdx.x == 0) s.chunks_before[0] = 0;
  __syncthreads();
}

// A place in the line.
struct Cursor {
  int row, kv_head, chunk;
  int chunks;  // of the row
};

__device__ inline Cursor CursorAt(const Schedule& s, int num_rows, int kv_heads, int place) {
  int low = 0, high = num_rows;  // the last row that begins at or before the place
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.chunks_before[middle] * kv_heads <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  Cursor c;
  c.row = low;
  c.chunks = s.chunks_before[low + 1] - s.chunks_before[low];
  place -= s.chunks_before[low] * kv_heads;
  c.kv_head = place / c.chunks;
  c.chunk = place % c.chunks;
  return c;
}

__device__ __forceinline__ void Advance(const Schedule& s, int num_rows, int kv_heads, Cursor& c) {
  if (++c.chunk < c.chunks) return;
  c.chunk = 0;
  if (++c.kv_head < kv_heads) return;
  c.kv_head = 0;
  do {
    ++c.row;
    c.chunks = c.row < num_rows ? s.chunks_before[c.row + 1] - s.chunks_before[c.row] : 1;
  } while (c.chunks == 0);
}

// Equal shares of the line: block i of `blocks` has places floor(i · total / blocks) …. The host
// sees to it that total · blocks fits 32 bits.
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

__device__ __forceinline__ Piece PieceAt(const Cursor& c, int place, int end) {
  return {c.row,          c.kv_head, c.chunks, c.chunk, min(c.chunks, c.chunk + end - place),
          place - c.chunk};
}

}  // namespace rootstock::kernels::cuda
