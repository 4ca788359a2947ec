// Tiles of a warp on their way from pages to shared memory, by the copy engine: in a step, between
// kernels that fill shared memory, that is as fast as alone, where loads to registers are not (90
// µs against 72 at 64 rows of 1024 positions).
#pragma once

#include "kernels/attention/decode_tile.cuh"
#include "kernels/linear/hopper.cuh"

namespace rootstock::kernels::cuda {

// Keys are up to kKeys tiles ahead, values kValues. Rows are apart so that what a warp reads at a
// time lies in different banks.
template <int kDim, int kKeys, int kValues>
class TileRing {
 public:
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kKeyStride = kRowBytes + 64, kValueStride = kRowBytes + 16;
  static constexpr int kWarpBytes = kTile * (kKeys * kKeyStride + kValues * kValueStride);
  static constexpr int kBarrierBytes = 8 * (kKeys + kValues);
  static constexpr size_t Bytes(int warps) { return size_t(warps) * (kWarpBytes + kBarrierBytes); }

  // memory: Bytes(warps), on 16 bytes. All lanes of a warp call everything here.
  __device__ TileRing(void* memory, int warps)
      : keys_(SharedAddress(memory) + threadIdx.x / 32 * kWarpBytes),
        values_(keys_ + kTile * kKeys * kKeyStride),
        barriers_(SharedAddress(memory) + warps * kWarpBytes + threadIdx.x / 32 * kBarrierBytes) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kKeys + kValues; ++i) BarrierInit(barriers_ + 8 * i, 1);
      BarrierInitFence();
    }
    __syncwarp();
#endif
  }

  // Into the place of the keys, or values, that were taken last. row: elements from one position to
  // the next; to_values: from a key to its value. Positions past the valid ones repeat the last, so
  // that what was never written is not read. A tile without valid ones is left out. Of a tile with
  // `fresh` positions the last valid one is copied by CopyFresh later; returns its place there.
  __device__ __forceinline__ int CopyKeys(const TilePlace& from, int row, bool fresh = false) {
    if (from.valid == 0) return 0;
    const int slot = keys_in_.slot;
    Expect(barriers_ + 8 * slot);
    Copy(KeysAt(slot), kKeyStride, from.keys, row, from.valid, barriers_ + 8 * slot, 0,
         fresh ? from.valid - 1 : kTile);
    keys_in_.template Next<kKeys>();
    return slot;
  }
  __device__ __forceinline__ int CopyValues(const TilePlace& from, int row, int to_values,
                                            bool fresh = false) {
    if (from.valid == 0) return 0;
    const int slot = values_in_.slot;
    Expect(barriers_ + 8 * (kKeys + slot));
    Copy(ValuesAt(slot), kValueStride, from.keys + to_values, row, from.valid,
         barriers_ + 8 * (kKeys + slot), 0, fresh ? from.valid - 1 : kTile);
    values_in_.template Next<kValues>();
    return slot;
  }
  __device__ __forceinline__ void CopyFreshKey(const TilePlace& from, int row, int slot) {
    Copy(KeysAt(slot), kKeyStride, from.keys, row, from.valid, barriers_ + 8 * slot, from.valid - 1,
         kTile);
  }
  __device__ __forceinline__ void CopyFreshValue(const TilePlace& from, int row, int to_values,
                                                 int slot) {
    Copy(ValuesAt(slot), kValueStride, from.keys + to_values, row, from.valid,
         barriers_ + 8 * (kKeys + slot), from.valid - 1, kTile);
  }

  // The oldest that were copied and not taken.
  __device__ __forceinline__ void TakeKeys(TileRegisters<kDim>& r) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Wait(barriers_ + 8 * keys_out_.slot, keys_out_.parity);
    const uint32_t from = keys_ + (keys_out_.slot * kTile + g) * kKeyStride + 16 * t;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int b = 0; b < kDim / 32; ++b) r.k[i][b] = Read(from + 8 * i * kKeyStride + 64 * b);
    }
    keys_out_.template Next<kKeys>();
  }
  __device__ __forceinline__ void TakeValues(TileRegisters<kDim>& r) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Wait(barriers_ + 8 * (kKeys + values_out_.slot), values_out_.parity);
    const uint32_t from = values_ + (values_out_.slot * kTile + 2 * t) * kValueStride + 16 * g;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t position = from + ((i & 1) + 4 * (i & 2)) * kValueStride;
#pragma unroll
      for (int h = 0; h < kDim / 64; ++h) r.v[i][h] = Read(position + 128 * h);
    }
    values_out_.template Next<kValues>();
  }

 private:
  struct Turn {
    int slot = 0, parity = 0;
    template <int kSlots>
    __device__ __forceinline__ void Next() {
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      parity ^= slot == 0;
    }
  };

  __device__ uint32_t KeysAt(int slot) const { return keys_ + slot * kTile * kKeyStride; }
  __device__ uint32_t ValuesAt(int slot) const { return values_ + slot * kTile * kValueStride; }

  __device__ __forceinline__ static void Expect(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) BarrierExpect(barrier, kTile * kRowBytes);
#endif
    __syncwarp();  // all have read what was here before
  }

  // Positions first … last - 1 of the tile.
  __device__ __forceinline__ static void Copy(uint32_t to, int stride, const __nv_bfloat16* from,
                                              int row, int valid, uint32_t barrier, int first,
                                              int last) {
    const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane < first || lane >= last) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to + lane * stride),
        "l"(from + min(lane, valid - 1) * row), "r"(kRowBytes), "r"(barrier)
        : "memory");
#else
    constexpr int kPieces = kRowBytes / 16;
    for (int i = first * kPieces + lane; i < last * kPieces; i += 32) {
      const int position = i / kPieces, piece = i % kPieces;
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + position * stride + piece * 16),
          "l"(from + min(position, valid - 1) * row + piece * 8)
          : "memory");
    }
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
