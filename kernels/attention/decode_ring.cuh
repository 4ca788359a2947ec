// Tiles of a warp on their way from pages to shared memory, by the copy engine: in a step, between
// kernels that fill shared memory, that is as fast as alone, where loads to registers are not. A
// tile is one tensor copy; copies of its rows take a loop of instructions.
#pragma once

#include "kernels/attention/decode_pages.cuh"
#include "kernels/attention/decode_tile.cuh"
#include "kernels/cuda/hopper.cuh"

namespace rootstock::kernels::cuda {

// Keys are up to kKeys tiles ahead, values kValues. A tile is [kDim / 64][16 positions][64], in
// which 16 bytes c of a position are at c ^ (position % 8): what eight lanes read at a time lies in
// different banks.
template <int kDim, int kKeys, int kValues>
class TileRing {
 public:
  static constexpr int kPieceBytes = kTile * kPieceDims * 2;
  static constexpr int kTileBytes = kDim / kPieceDims * kPieceBytes;
  static constexpr int kWarpBytes = kTileBytes * (kKeys + kValues);
  static constexpr int kBarrierBytes = 8 * (kKeys + kValues);
  static constexpr size_t Bytes(int warps) { return size_t(warps) * (kWarpBytes + kBarrierBytes); }

  // memory: Bytes(warps), on 1024 bytes. All lanes of a warp call everything here.
  __device__ TileRing(void* memory, int warps)
      : keys_(SharedAddress(memory) + threadIdx.x / 32 * kWarpBytes),
        values_(keys_ + kTileBytes * kKeys),
        barriers_(SharedAddress(memory) + warps * kWarpBytes + threadIdx.x / 32 * kBarrierBytes) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kKeys + kValues; ++i) BarrierInit(barriers_ + 8 * i, 1);
      BarrierInitFence();
    }
    __syncwarp();
#endif
  }

  // Into the place of the keys, or values, that were taken last. A tile without valid positions is
  // left out. One with `later` only comes nearer, and its place is returned for CopyKeysTo, or
  // CopyValuesTo.
  __device__ __forceinline__ int CopyKeys(const PageReader& pages, const TilePlace& from,
                                          bool later = false) {
    if (from.valid == 0) return 0;
    const int slot = keys_in_.slot;
    if (later) {
      Prefetch(pages, from, from.token);
    } else {
      CopyKeysTo(slot, pages, from);
    }
    keys_in_.template Next<kKeys>();
    return slot;
  }
  __device__ __forceinline__ int CopyValues(const PageReader& pages, const TilePlace& from,
                                            bool later = false) {
    if (from.valid == 0) return 0;
    const int slot = values_in_.slot;
    if (later) {
      Prefetch(pages, from, from.token + pages.page_tokens);
    } else {
      CopyValuesTo(slot, pages, from);
    }
    values_in_.template Next<kValues>();
    return slot;
  }
  __device__ __forceinline__ void CopyKeysTo(int slot, const PageReader& pages,
                                             const TilePlace& from) {
    Copy(keys_ + slot * kTileBytes, pages, from, from.token, barriers_ + 8 * slot);
  }
  __device__ __forceinline__ void CopyValuesTo(int slot, const PageReader& pages,
                                               const TilePlace& from) {
    Copy(values_ + slot * kTileBytes, pages, from, from.token + pages.page_tokens,
         barriers_ + 8 * (kKeys + slot));
  }

  // The oldest that were copied and not taken.
  __device__ __forceinline__ void TakeKeys(TileRegisters<kDim>& r) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Wait(barriers_ + 8 * keys_out_.slot, keys_out_.parity);
    const uint32_t from = keys_ + keys_out_.slot * kTileBytes + g * kPositionBytes;
    const uint32_t place = 16 * (2 * t ^ g);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b) {
        r.k[i][b] =
            Read(from + (place ^ 16 * (b & 1)) + b / 2 * kPieceBytes + 8 * i * kPositionBytes);
      }
    }
    keys_out_.template Next<kKeys>();
  }
  // Of positions past the valid ones, which may hold anything, 0.
  __device__ __forceinline__ void TakeValues(int valid, TileRegisters<kDim>& r) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Wait(barriers_ + 8 * (kKeys + values_out_.slot), values_out_.parity);
    const uint32_t from = values_ + values_out_.slot * kTileBytes + 2 * t * kPositionBytes;
    const uint32_t place = 16 * (2 * t ^ g);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t position =
          from + (place ^ 16 * (i & 1)) + ((i & 1) + 4 * (i & 2)) * kPositionBytes;
#pragma unroll
      for (int h = 0; h < kDim / 64; ++h) r.v[i][h] = Read(position + h * kPieceBytes);
    }
    values_out_.template Next<kValues>();
    if (valid == kTile) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * t + (i & 1) + 4 * (i & 2) < valid) continue;
#pragma unroll
      for (int h = 0; h < kDim / 64; ++h) r.v[i][h] = make_uint4(0, 0, 0, 0);
    }
  }

 private:
  static constexpr int kPositionBytes = kPieceDims * 2;

  struct Turn {
    int slot = 0, parity = 0;
    template <int kSlots>
    __device__ __forceinline__ void Next() {
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      parity ^= slot == 0;
    }
  };

  // token: of the page's keys and values.
  __device__ __forceinline__ static void Copy(uint32_t to, const PageReader& pages,
                                              const TilePlace& from, int token, uint32_t barrier) {
    __syncwarp();  // all have read what was here before
#if __CUDA_ARCH__ >= 900
    if (!OneOfWarp()) return;
    BarrierExpect(barrier, kTileBytes);
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(&pages.map), "r"(0), "r"(token), "r"(from.kv_head * (kDim / kPieceDims)),
        "r"(from.page), "r"(barrier)
        : "memory");
#else
    constexpr int kChunks = kDim / 8;  // of 16 bytes, a position
    const __nv_bfloat16* first = pages.layer + from.page * pages.page_elements +
                                 (token * pages.kv_heads + from.kv_head) * kDim;
    for (int i = threadIdx.x % 32; i < from.valid * kChunks; i += 32) {
      const int position = i / kChunks, chunk = i % kChunks;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + chunk / 8 * kPieceBytes +
                                                                     position * kPositionBytes +
                                                                     16 * ((chunk ^ position) % 8)),
                   "l"(first + position * pages.kv_heads * kDim + chunk * 8)
                   : "memory");
    }
#endif
  }
  // To the second cache, which sees what is written there later.
  __device__ __forceinline__ static void Prefetch(const PageReader& pages, const TilePlace& from,
                                                  int token) {
#if __CUDA_ARCH__ >= 900
    if (!OneOfWarp()) return;
    asm volatile(
        "cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&pages.map),
        "r"(0), "r"(token), "r"(from.kv_head * (kDim / kPieceDims)), "r"(from.page)
        : "memory");
#endif
  }
  __device__ __forceinline__ static bool OneOfWarp() {
#if __CUDA_ARCH__ >= 900
    uint32_t one;
    asm volatile(
        "{.reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;}\n"
        : "=r"(one));
    return one != 0;
#else
    return threadIdx.x % 32 == 0;
#endif
  }
  __device__ __forceinline__ static void Wait(uint32_t barrier, int parity) {
#if __CUDA_ARCH__ >= 900
    BarrierWait(barrier, parity);
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
#endif
  }
  __device__ __forceinline__ static uint4 Read(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
  }

  uint32_t keys_, values_, barriers_;
  Turn keys_in_, keys_out_, values_in_, values_out_;
};

}  // namespace rootstock::kernels::cuda
