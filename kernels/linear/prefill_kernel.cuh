// Matrix product of long steps: out [m, n] = x [m, k] · w [n, k]ᵀ, bf16, sums in f32.
//
// A persistent block has two warpgroups that multiply, 64 tokens each of a tile of 128 tokens and
// 256 rows of w, and one that copies: a thread of it fills a ring of 64 values of k with tensor
// copies, two warps of it bring what LoRA adds (prefill_lora.cuh). Two blocks (a cluster) have the
// same rows of w and neighbouring tokens: each loads half of w's box for both. A warpgroup is free
// to run ahead of the other by the ring's length, so that one multiplies while the other stores.
//
// kGated: a tile is 128 rows of gate and the matching rows of up, and silu(gate) · up is stored.
#pragma once

#include "kernels/linear/prefill_lora.cuh"

namespace rootstock::kernels::cuda {

constexpr int kPrefillCluster = 2;
constexpr int kPrefillStages = 4;
constexpr int kPrefillBoxK = 64;
constexpr int kPrefillXBytes = kPrefillRows * kPrefillBoxK * 2;
constexpr int kPrefillWBytes = kPrefillColumns * kPrefillBoxK * 2;
constexpr int kPrefillStageBytes = kPrefillXBytes + kPrefillWBytes;
constexpr int kPrefillThreads = 384;
constexpr int kPrefillBarrierBytes = 128;
constexpr int kPrefillShared =
    kPrefillStages * kPrefillStageBytes + kLoraSlots * kLoraSlotBytes + kPrefillBarrierBytes;
// Boxes of k between what LoRA adds, so that the warps that bring it keep up. In a block's first
// tile LoRA begins behind kLoraFrom boxes; if v is written meanwhile, kLoraLast before the last.
constexpr int kLoraEvery = 4;
constexpr int kLoraFrom = 8;
constexpr int kLoraLast = 2;

struct PrefillParams {
  __nv_bfloat16* out = nullptr;
  const float* bias = nullptr;  // [n]; null: none
  int m = 0;
  int n = 0;                            // rows of w
  int boxes = 0;                        // of k
  int row_tiles = 0, column_tiles = 0;  // row_tiles: of a cluster
  int group = 0;                        // row tiles that share w in the second cache
  bool x_ready = false;                 // as LinearExpand::beside says
  int lora_from = 0;                    // boxes of a block's first tile before LoRA is added
};

// Tiles of a cluster: a group's row tiles run fastest.
struct PrefillTile {
  int row, column;

  __device__ PrefillTile(const PrefillParams& p, int index) {
    const int of_group = p.group * p.column_tiles;
    const int first = index / of_group * p.group;
    const int rows = min(p.group, p.row_tiles - first);
    const int at = index % of_group;
    row = first + at % rows;
    column = at / rows;
  }
};

struct PrefillRing {
  uint32_t data, full, empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t X(int s) const { return data + s * kPrefillStageBytes; }
  __device__ uint32_t W(int s) const { return X(s) + kPrefillXBytes; }
  __device__ uint32_t Full(int s) const { return full + 8 * s; }
  __device__ uint32_t Empty(int s) const { return empty + 8 * s; }
  __device__ void Step() {
    if (++stage == kPrefillStages) stage = 0, parity ^= 1;
  }
};

// The first row of w of a half of a tile.
template <bool kGated>
__device__ __forceinline__ int HalfColumn(const PrefillParams& p, int column_tile, int half) {
  return kGated ? column_tile * kPrefillHalf + half * (p.n / 2)
                : column_tile * kPrefillColumns + half * kPrefillHalf;
}

// Of one thread.
template <bool kGated>
__device__ __forceinline__ void PrefillCopy(const CUtensorMap* w, const CUtensorMap* x,
                                            const PrefillParams& p, PrefillRing ring) {
  const int rank = static_cast<int>(ClusterRank());
  const int tiles = p.row_tiles * p.column_tiles;
  const int clusters = gridDim.x / kPrefillCluster;
  if (!p.x_ready) GridDependencyWait();
  for (int index = blockIdx.x / kPrefillCluster; index < tiles; index += clusters) {
    const PrefillTile tile(p, index);
    const int row = (tile.row * kPrefillCluster + rank) * kPrefillRows;
    if (index + clusters >= tiles) GridLaunchDependents();
    for (int box = 0; box < p.boxes; ++box) {
      const int s = ring.stage;
      BarrierWait(ring.Empty(s), ring.parity ^ 1);
      BarrierExpect(ring.Full(s), kPrefillStageBytes);
      LoadBox(ring.X(s), x, box * kPrefillBoxK, row, ring.Full(s));
      LoadBoxToBoth(ring.W(s) + rank * kPrefillWBytes / 2, w, box * kPrefillBoxK,
                    HalfColumn<kGated>(p, tile.column, rank), ring.Full(s));
      ring.Step();
    }
  }
}

// Four values of each lane of a quad, transposed: lane q gets the q-th of each lane in order.
__device__ __forceinline__ void TransposeQuad(uint32_t (&x)[4]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = bit == 1 ? 2 * pair : pair;
      const int high = low + bit;
      const bool upper = (q & bit) != 0;
      const uint32_t given = __shfl_xor_sync(~0u, upper ? x[low] : x[high], bit);
      (upper ? x[low] : x[high]) = given;
    }
  }
}

// A warpgroup's sums to `out` from column `first`, of `columns` that exist. kGated: silu · up.
template <bool kGated>
__device__ __forceinline__ void PrefillStore(const PrefillParams& p, int row, int column,
                                             float (&d)[128]) {
  constexpr int kOut = kGated ? kPrefillHalf : kPrefillColumns;
  const int width = kGated ? p.n / 2 : p.n;
  const int lane = threadIdx.x % 32;
  const int first = column * kOut;
#pragma unroll
  for (int j = 0; j < kOut / 8; j += 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * h;
        float a = d[at], b = d[at + 1];
        if constexpr (kGated) {
          a = SiluMulOne(a, d[64 + at]);
          b = SiluMulOne(b, d[64 + at + 1]);
        } else if (p.bias != nullptr) {
          const int of = first + 8 * (j + i) + 2 * (lane % 4);
          if (of < width) a += __ldg(p.bias + of), b += __ldg(p.bias + of + 1);
        }
        packed[i] = PackBf16(a, b);
      }
      TransposeQuad(packed);
      const int to_row = row + lane / 4 + 8 * h;
      const int to = first + 8 * (j + lane % 4);
      if (to_row < p.m && to < width) {
        *reinterpret_cast<uint4*>(p.out + static_cast<size_t>(to_row) * width + to) =
            uint4{packed[0], packed[1], packed[2], packed[3]};
      }
    }
  }
}

// Of a warpgroup (0 or 1).
template <bool kGated, bool kLora>
__device__ __forceinline__ void PrefillMultiply(const PrefillParams& p, PrefillRing ring,
                                                const LoraSlots& slots, int group) {
  const int rank = static_cast<int>(ClusterRank());
  const int tiles = p.row_tiles * p.column_tiles;
  const int lane = threadIdx.x % 32;
  const uint32_t empty = lane < kPrefillCluster ? RemoteAddress(ring.empty, lane) : 0;
  const auto release = [&](int stage) {
    if (lane < kPrefillCluster) BarrierArriveRemote(empty + 8 * stage);
  };
  LoraTake take(slots);
  int held = -1;       // the stage whose products may still run
  int held_slot = -1;  // likewise, of LoRA
  float d[128];
  // After a commit: what the products before it read is given back.
  const auto give_back = [&]() {
    if (held >= 0) release(held);
    if (kLora && held_slot >= 0) take.Release(held_slot);
    held = held_slot = -1;
  };
  // Boxes [first, last) of the tile.
  const auto multiply = [&](int first, int last) {
    for (int box = first; box < last; ++box) {
      const int s = ring.stage;
      BarrierWait(ring.Full(s), ring.parity);
      const uint64_t a = MatrixDescriptor(ring.X(s) + group * 64 * 128);
      const uint64_t b = MatrixDescriptor(ring.W(s));
      MmaFence();
#pragma unroll
      for (int i = 0; i < 4; ++i) MmaRows(d, a + 2 * i, b + 2 * i, box > 0 || i > 0);
      MmaCommit();
      MmaWait<1>();
      give_back();
      held = s;
      ring.Step();
    }
  };
  // 16 ranks of LoRA; false: there are none left for the tile.
  const auto add = [&]() {
    const int slot = take.Next();
    if (slot < 0) return false;
    MmaFence();
    take.Multiply(d, slot, group * 64);
    MmaCommit();
    MmaWait<1>();
    give_back();
    held_slot = slot;
    return true;
  };
  const int clusters = gridDim.x / kPrefillCluster;
  const int first_index = blockIdx.x / kPrefillCluster;
  for (int index = first_index; index < tiles; index += clusters) {
    int box = 0;
    if constexpr (kLora) {
      bool more = true;
      int next = index == first_index ? max(p.lora_from, kLoraEvery) : kLoraEvery;
      for (; more && next <= p.boxes; next += kLoraEvery) {
        multiply(box, next);
        box = next;
        more = add();
      }
      multiply(box, p.boxes);
      while (more) more = add();
    } else {
      multiply(box, p.boxes);
    }
    MmaWait<0>();
    give_back();
    const PrefillTile tile(p, index);
    const int row = (tile.row * kPrefillCluster + rank) * kPrefillRows;
    PrefillStore<kGated>(p, row + group * 64 + threadIdx.x % 128 / 32 * 16, tile.column, d);
  }
}

// grid: at most a block an SM, a multiple of kPrefillCluster; block: kPrefillThreads; shared
// memory: kPrefillShared.
template <bool kGated, bool kLora>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    PrefillKernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ PrefillParams p,
                  const __grid_constant__ PrefillExpand lora) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const uint32_t base = SharedAddress(shared);
  const int slots_at = kPrefillStages * kPrefillStageBytes;
  const int barriers_at = slots_at + kLoraSlots * kLoraSlotBytes;
  const uint32_t barriers = base + barriers_at;
  const PrefillRing ring{base, barriers, barriers + 8 * kPrefillStages};
  const uint32_t lora_barriers = barriers + 16 * kPrefillStages;
  const LoraSlots slots{base + slots_at, lora_barriers, lora_barriers + 8 * kLoraSlots,
                        reinterpret_cast<volatile int*>(shared + barriers_at + 112)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < kPrefillStages; ++s) {
      BarrierInit(ring.Full(s), 1);
      BarrierInit(ring.Empty(s), 8 * kPrefillCluster);
    }
    for (int s = 0; s < kLoraSlots; ++s) {
      BarrierInit(slots.Full(s), 32 * kLoraWarps);
      BarrierInit(slots.Empty(s), 8);
    }
    BarrierInitFence();
  }
  __syncthreads();
  ClusterArrive();
  ClusterWait();
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLora ? 88 : 40));
    if (warp == 8 && threadIdx.x % 32 == 0) PrefillCopy<kGated>(&w, &x, p, ring);
    if (kLora && warp >= 10) {
      LoraFeed feed(lora, slots, warp - 10);
      const int rank = static_cast<int>(ClusterRank());
      for (int index = blockIdx.x / kPrefillCluster; index < p.row_tiles * p.column_tiles;
           index += gridDim.x / kPrefillCluster) {
        const PrefillTile tile(p, index);
        feed.Tile((tile.row * kPrefillCluster + rank) * kPrefillRows, p.m,
                  {HalfColumn<kGated>(p, tile.column, 0), HalfColumn<kGated>(p, tile.column, 1)});
      }
    }
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kLora ? 208 : 232));
    PrefillMultiply<kGated, kLora>(p, ring, slots, warp / 4);
  }
  ClusterArrive();
  ClusterWait();
#endif
}

}  // namespace rootstock::kernels::cuda
