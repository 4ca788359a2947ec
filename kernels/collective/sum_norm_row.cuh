// What a thread of SumAddRmsNorm's kernel has of a row: 8 columns, and the LoRA of the token there.
#pragma once

#include "kernels/collective/sum_norm_cuda.h"
#include "kernels/lora/lora_device.cuh"

namespace rootstock::kernels::cuda {

// 8 elements of T.
template <typename T>
struct Columns {
  static constexpr int kPieces = sizeof(T) / 2;  // of 16 bytes
  uint4 raw[kPieces];

  __device__ __forceinline__ void Load(const T* p) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) raw[i] = LoadL2(reinterpret_cast<const uint4*>(p) + i);
  }
  __device__ __forceinline__ void Unpack(float (&x)[8]) const {
    if constexpr (sizeof(T) == 2) {
      Unpack8(raw[0], x);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[4 * i] = __uint_as_float(raw[i].x), x[4 * i + 1] = __uint_as_float(raw[i].y);
        x[4 * i + 2] = __uint_as_float(raw[i].z), x[4 * i + 3] = __uint_as_float(raw[i].w);
      }
    }
  }
  __device__ __forceinline__ void Pack(const float (&x)[8]) {
    if constexpr (sizeof(T) == 2) {
      raw[0] = {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
                PackBf16(x[6], x[7])};
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        raw[i] = {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                  __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])};
      }
    }
  }
};

// The LoRA of one token at a thread's 8 columns. The whole block calls every function.
template <typename T>
class RowLora {
 public:
  // B's rows in registers at a time.
  static constexpr int kRows = sizeof(T) == 2 ? 16 : 8;
  struct Shared {
    float v[kMaxLoraRank];
    uint32_t b[kMaxLoraRank];  // offsets of B's rows from kRows on
  };

  // This and LoadFirst read what no kernel of the step writes: they may come before the wait.
  __device__ RowLora(const SumNormLora& lora, int token, int column, Shared& shared)
      : step_(lora.step),
        lora_(lora),
        column_(column),
        shared_(shared),
        row_(LoadKept(lora.step.rows + LoadKept(lora.step.row_of + token))) {
    SetSite();
  }

  // B's first rows; the others go to the second cache.
  __device__ __forceinline__ void LoadFirst() {
    uint32_t offset[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) offset[i] = i < rank_ ? LoadKept(b_ + i) : 0;
    LoadRows(0, offset);
    for (int r = kRows + threadIdx.x; r < rank_; r += blockDim.x) shared_.b[r] = LoadKept(b_ + r);
    for (int r = kRows; r < rank_ && threadIdx.x % 8 == 0; ++r) {
      if (live_) PrefetchL2(SlabRow<T>(step_, LoadKept(b_ + r)) + at_);
    }
  }

  // x += scale · v · B.
  __device__ __forceinline__ void Add(int splits, float (&x)[8]) {
    while (row_.sites != nullptr) {
      const float* parts = VOf(step_, splits, row_.member, 0);
      for (int r = threadIdx.x; r < rank_; r += blockDim.x) {
        shared_.v[r] = SumParts(parts + r, splits) * scale_ * row_.scale;
      }
      __syncthreads();
      for (int k = 0; k < rank_; k += kRows) {
        if (k > 0) LoadRows(k, shared_.b + k);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (k + i >= rank_) break;
          float b[8];
          rows_[i].Unpack(b);
#pragma unroll
          for (int c = 0; c < 8; ++c) x[c] += shared_.v[k + i] * b[c];
        }
      }
      if (row_.next < 0) return;
      __syncthreads();  // what is shared of the adapter before was read
      row_ = LoadKept(step_.rows + row_.next);
      SetSite();
      LoadFirst();
    }
  }

 private:
  __device__ __forceinline__ void SetSite() {
    rank_ = 0;
    live_ = false;
    if (row_.sites == nullptr) return;
    // An adapter is whole or in slices; its other site has no components.
    LoraSiteEntry site = LoadKept(&SiteOf(row_.sites, lora_.whole, 0));
    int first = lora_.whole.column[0];
    int features = lora_.whole.features[0];
    if (site.lora_rank == 0 && lora_.slice.count > 0) {
      site = LoadKept(&SiteOf(row_.sites, lora_.slice, 0));
      first = lora_.slice.column[0];
      features = lora_.slice.features[0];
    }
    b_ = site.b;
    rank_ = site.lora_rank;
    scale_ = site.scale;
    at_ = column_ - first;
    live_ = at_ >= 0 && at_ < features;
  }

  // The splits in order, their loads under way together.
  __device__ __forceinline__ float SumParts(const float* part, int splits) const {
    constexpr int kBatch = 4;
    const int padded = PaddedRank(rank_);
    float sum = 0.0f;
    for (int first = 0; first < splits; first += kBatch) {
      float of[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        of[s] = first + s < splits ? part[(first + s) * padded] : 0.0f;
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s < splits) sum += of[s];
      }
    }
    return sum;
  }

  // Rows k … k + kRows - 1, which lie at offset[…]; zeros where there are none.
  __device__ __forceinline__ void LoadRows(int k, const uint32_t* offset) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows_[i] = {};
      if (live_ && k + i < rank_) rows_[i].Load(SlabRow<T>(step_, offset[i]) + at_);
    }
  }

  const LoraStep& step_;
  const SumNormLora& lora_;
  const int column_;
  Shared& shared_;
  LoraRow row_;
  const uint32_t* b_ = nullptr;
  int rank_ = 0, at_ = 0;
  bool live_ = false;  // the adapter has these columns
  float scale_ = 0.0f;
  Columns<T> rows_[kRows];
};

// In its place without LoRA.
struct NoLora {
  struct Shared {};
  __device__ NoLora(const SumNormLora&, int, int, Shared&) {}
  __device__ void LoadFirst() const {}
  __device__ void Add(int, float (&)[8]) const {}
};

}  // namespace rootstock::kernels::cuda
