// LoRA inside the prefill GEMM: two warps of a block put what adapters add to a tile into slots of
// shared memory, 16 ranks of one adapter at a time, and the multiplying warps add it to their sums
// as 16 more values of k: scale · v of the tile's rows (zeros where a row has another adapter)
// times the rows of Bᵀ as they lie in the pages.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/linear/prefill_mma.cuh"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

constexpr int kPrefillRows = 128;     // tokens of a tile
constexpr int kPrefillColumns = 256;  // weight rows of a tile, in two halves
constexpr int kPrefillHalf = kPrefillColumns / 2;

constexpr int kLoraSlots = 2;
constexpr int kLoraVBytes = kPrefillRows * 16 * 2;
constexpr int kLoraBBytes = kPrefillColumns * 16 * 2;
constexpr int kLoraSlotBytes = kLoraBBytes + kLoraVBytes;
constexpr int kLoraWarps = 2;

struct PrefillExpand {
  LoraStep step;
  LoraTargets targets;
};

// A slot: Bᵀ | scale · v.
struct LoraSlots {
  uint32_t data;       // [kLoraSlots][kLoraSlotBytes]
  uint32_t full;       // barriers [kLoraSlots], of all threads of the two warps
  uint32_t empty;      // barriers [kLoraSlots]
  volatile int* more;  // [kLoraSlots]; 0: nothing for the tile, and nothing more

  __device__ uint32_t Full(int slot) const { return full + 8 * slot; }
  __device__ uint32_t Empty(int slot) const { return empty + 8 * slot; }
  __device__ uint32_t B(int slot) const { return data + slot * kLoraSlotBytes; }
  __device__ uint32_t V(int slot) const { return B(slot) + kLoraBBytes; }
};

// Of the two warps. What they fill a slot with, and what the multiplying warps store behind it,
// comes after their wait for the kernel ahead; the tables and the weights were there before. With
// lane l: it has rows 32j + l of a tile; of v it brings those of j = 2 · warp and 2 · warp + 1, of
// Bᵀ rows 8 · warp … + 7 at columns 8 · (l % 16) of half l / 16.
class LoraFeed {
 public:
  __device__ LoraFeed(const PrefillExpand& lora, const LoraSlots& slots, int warp)
      : lora_(lora), slots_(slots), warp_(warp), lane_(threadIdx.x % 32) {}

  // What adapters add to the tile at `row`, whose halves begin at these columns.
  __device__ __forceinline__ void Tile(int row, int m, const int (&columns)[2]) {
    const LoraStep& step = lora_.step;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = row + 32 * j + lane_;
      SetEntry(j, token < m ? step.row_of[token] : -1);
    }
    const int target[2] = {TargetOf(lora_.targets, columns[0]),
                           TargetOf(lora_.targets, columns[1])};
    while (const LoraSiteEntry* adapter = Next()) {
      Adapter(adapter, target, columns);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (entry_[j] >= 0 && sites_[j] == adapter) SetEntry(j, step.rows[entry_[j]].next);
      }
    }
    GridDependencyWait();
    BarrierWait(slots_.Empty(slot_), parity_ ^ 1);
    Give(0);
  }

 private:
  // The row's next adapter; -1: none.
  __device__ __forceinline__ void SetEntry(int j, int entry) {
    sites_[j] = entry >= 0 ? lora_.step.rows[entry].sites : nullptr;
    entry_[j] = sites_[j] != nullptr ? entry : -1;
  }

  // Of the first row that has one left.
  __device__ __forceinline__ const LoraSiteEntry* Next() const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned any = __ballot_sync(~0u, entry_[j] >= 0);
      if (any == 0) continue;
      return reinterpret_cast<const LoraSiteEntry*>(__shfl_sync(
          ~0u, reinterpret_cast<unsigned long long>(sites_[j]), __ffs(static_cast<int>(any)) - 1));
    }
    return nullptr;
  }

  // Of each target of the tile by itself: they have their own v.
  __device__ __forceinline__ void Adapter(const LoraSiteEntry* adapter, const int (&target)[2],
                                          const int (&columns)[2]) {
    int member[2];
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int entry = warp_ == 0 ? entry_[i] : entry_[2 + i];
      const bool own = entry >= 0 && (warp_ == 0 ? sites_[i] : sites_[2 + i]) == adapter;
      member[i] = own ? lora_.step.rows[entry].member : -1;
      scale[i] = own ? lora_.step.rows[entry].scale : 0.0f;
    }
    const int half = lane_ / 16;
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const int of = h == 0 ? target[0] : target[1];
      if (of < 0 || (h == 1 && of == target[0])) continue;
      const LoraSiteEntry site = SiteOf(adapter, lora_.targets, of);
      const int column =
          (half == 0 ? columns[0] : columns[1]) + lane_ % 16 * 8 - Pick(lora_.targets.column, of);
      const bool here =
          (half == 0 ? target[0] : target[1]) == of && column < Pick(lora_.targets.features, of);
      uint32_t offset = Offset(site, 0);
      GridDependencyWait();
      for (int k = 0; k < site.lora_rank; k += 16) {
        const float* v[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          v[i] = member[i] >= 0 ? VOf(lora_.step, 1, member[i], of) + k : nullptr;
          if (v[i] != nullptr) PrefetchL1(v[i]);
        }
        const uint32_t next = Offset(site, k + 16);
        BarrierWait(slots_.Empty(slot_), parity_ ^ 1);
        BringB(k, offset, here ? site.lora_rank : 0, column);
#pragma unroll
        for (int i = 0; i < 2; ++i) BringV(i, v[i], scale[i] * site.scale);
        CommitCopies();
        WaitForCopies<0>();
        Give(1);
        offset = next;
      }
    }
  }

  // Of the row of Bᵀ that the lane holds for its neighbours.
  __device__ __forceinline__ uint32_t Offset(const LoraSiteEntry& site, int k) const {
    const int r = k + 8 * warp_ + lane_ % 8;
    return r < site.lora_rank ? __ldg(site.b + r) : 0;
  }

  __device__ __forceinline__ void BringB(int k, uint32_t offset, int rank, int column) const {
    const uint32_t to = slots_.B(slot_) + lane_ / 8 * 2048 + warp_ * 1024;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t row = __shfl_sync(~0u, offset, (lane_ & 16) | i);
      const bool live = k + 8 * warp_ + i < rank;
      CopyAsync16(to + i * 128 + ((lane_ % 8) ^ i) * 16,
                  SlabRow<__nv_bfloat16>(lora_.step, row) + (live ? column : 0), live);
    }
  }

  // 16 ranks of the lane's i-th row; zeros if `from` is null.
  __device__ __forceinline__ void BringV(int i, const float* from, float scale) const {
    const int row = 32 * (2 * warp_ + i) + lane_;
    const uint32_t to = slots_.V(slot_) + row / 8 * 256 + row % 8 * 16;
    float4 v[4] = {};
    if (from != nullptr) {
#pragma unroll
      for (int c = 0; c < 4; ++c) v[c] = reinterpret_cast<const float4*>(from)[c];
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 &a = v[2 * c], &b = v[2 * c + 1];
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 128 * c),
                   "r"(PackBf16(scale * a.x, scale * a.y)), "r"(PackBf16(scale * a.z, scale * a.w)),
                   "r"(PackBf16(scale * b.x, scale * b.y)), "r"(PackBf16(scale * b.z, scale * b.w))
                   : "memory");
    }
  }

  __device__ __forceinline__ void Give(int more) {
    if (warp_ == 0 && lane_ == 0) slots_.more[slot_] = more;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    BarrierArrive(slots_.Full(slot_));
    if (++slot_ == kLoraSlots) slot_ = 0, parity_ ^= 1;
  }

  const PrefillExpand& lora_;
  const LoraSlots slots_;
  const int warp_, lane_;
  int slot_ = 0;
  uint32_t parity_ = 0;
  int entry_[4];  // of the step's rows; -1: the row has no adapter left
  const LoraSiteEntry* sites_[4];
};

// Of the multiplying warps: the slots that were filled, in turn.
class LoraTake {
 public:
  __device__ explicit LoraTake(const LoraSlots& slots) : slots_(slots) {}

  // Waits for the next slot; -1: it ends the tile, and was given back.
  __device__ __forceinline__ int Next() {
    BarrierWait(slots_.Full(slot_), parity_);
    const int slot = slot_;
    const bool more = __shfl_sync(~0u, threadIdx.x % 32 == 0 ? slots_.more[slot] : 0, 0) != 0;
    if (!more) Release(slot);
    if (++slot_ == kLoraSlots) slot_ = 0, parity_ ^= 1;
    return more ? slot : -1;
  }
  // d += what is in the slot, of a warpgroup's 64 rows from `first_row` of the tile. Asynchronous.
  __device__ __forceinline__ void Multiply(float (&d)[128], int slot, int first_row) const {
    MmaColumns(d, BlocksDescriptor(slots_.V(slot) + first_row * 32),
               TransposedDescriptor(slots_.B(slot)));
  }
  // The slot may be filled again.
  __device__ __forceinline__ void Release(int slot) const {
    if (threadIdx.x % 32 == 0) BarrierArrive(slots_.Empty(slot));
  }

 private:
  const LoraSlots slots_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace rootstock::kernels::cuda
