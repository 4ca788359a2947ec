// A block's part of a row of logits: loading, and the adjustments before temperature.
#pragma once

#include "kernels/sampler/row_scan.cuh"

namespace rootstock::kernels::cuda {

constexpr float kNever = -INFINITY;

__device__ inline float FromBf16(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ inline float RawLogit(const SampleStep& step, int row, int id) {
  const size_t at = static_cast<size_t>(row) * step.vocab + id;
  return step.logits_type == Type::kF32 ? static_cast<const float*>(step.logits)[at]
                                        : FromBf16(static_cast<const uint16_t*>(step.logits)[at]);
}

// f(float4 logits, int i) for the raw logits at chunk.first + i, −∞ beyond the vocabulary; each i
// that is a multiple of 4 once.
template <typename F>
__device__ void ForEachRawFour(const SampleStep& step, int row, const Chunk& chunk, F f) {
  const bool bf16 = step.logits_type == Type::kBF16;
  const size_t start = static_cast<size_t>(row) * step.vocab + chunk.first;
  const auto* bytes = static_cast<const std::byte*>(step.logits) + start * (bf16 ? 2 : 4);
  const bool aligned =
      reinterpret_cast<uintptr_t>(bytes) % 16 == 0 && chunk.count % (bf16 ? 8 : 4) == 0;
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int tile = threadIdx.x / 32; tile < chunk.tiles; tile += kWarps) {
    float4 v[2];
    int at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      v[half] = {kNever, kNever, kNever, kNever};
      at[half] = tile * kTile + (bf16 ? lane * 8 + half * 4 : half * 128 + lane * 4);
    }
    if (!aligned) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* four = &v[half].x;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (at[half] + j < chunk.count) four[j] = RawLogit(step, row, chunk.first + at[half] + j);
        }
      }
    } else if (bf16) {
      if (at[0] < chunk.count) {
        const uint4 p = *reinterpret_cast<const uint4*>(bytes + at[0] * 2);
        v[0] = {FromBf16(p.x & 0xffff), FromBf16(p.x >> 16), FromBf16(p.y & 0xffff),
                FromBf16(p.y >> 16)};
        v[1] = {FromBf16(p.z & 0xffff), FromBf16(p.z >> 16), FromBf16(p.w & 0xffff),
                FromBf16(p.w >> 16)};
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (at[half] < chunk.count)
          v[half] = *reinterpret_cast<const float4*>(bytes + at[half] * 4);
      }
    }
    f(v[0], at[0]);
    f(v[1], at[1]);
  }
}

// Starts copying the row's parameters to chunk.shared; LoadChunk waits for them.
__device__ inline void TakeRow(const SampleStep& step, int row, RowShared& shared) {
  static_assert(sizeof(SampleRow) % 16 == 0);
  constexpr int kPieces = sizeof(SampleRow) / 16;
  if (threadIdx.x >= kPieces) return;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(&shared.row) +
                                                                 16 * threadIdx.x),
               "l"(reinterpret_cast<const std::byte*>(step.rows + row) + 16 * threadIdx.x)
               : "memory");
}

// The highest of the values that this thread looked at, and the four values among which it is.
struct ThreadHighest {
  float best = kNever;
  int at = 0;
  __device__ void Look(const float4& v, int i) {
    const float four = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    if (four > best) {
      best = four;
      at = i;
    }
  }
};

// Fills chunk.values, −0 as 0, so that equals have equal bits. True: a logit of this block's part
// is not finite.
__device__ inline bool LoadChunk(const SampleStep& step, int row, const Chunk& chunk,
                                 ThreadHighest* highest) {
  float poison = 0.0f;  // x · 0 is NaN where x is not finite
  ForEachRawFour(step, row, chunk, [&](const float4& v, int i) {
    const float4 plain = {v.x + 0.0f, v.y + 0.0f, v.z + 0.0f, v.w + 0.0f};
    *reinterpret_cast<float4*>(chunk.values + i) = plain;
    highest->Look(plain, i);
    if (i + 3 < chunk.count) {
      poison = fmaf(v.x, 0.0f, fmaf(v.y, 0.0f, fmaf(v.z, 0.0f, fmaf(v.w, 0.0f, poison))));
    } else {
      if (i < chunk.count) poison = fmaf(v.x, 0.0f, poison);
      if (i + 1 < chunk.count) poison = fmaf(v.y, 0.0f, poison);
      if (i + 2 < chunk.count) poison = fmaf(v.z, 0.0f, poison);
    }
  });
  asm volatile("cp.async.wait_all;" ::: "memory");  // TakeRow's
  return __syncthreads_or(poison != 0.0f);
}

// l > 0 ? l / p : l · p; l −= frequency · outputs; l −= presence. Each step rounds as on the host.
__device__ inline float Penalized(const SampleRow& row, uint32_t count, float l) {
  if (count == 0) return l;
  const uint32_t outputs = count & ~kInPrompt;
  l = l > 0.0f ? __fdiv_rn(l, row.repetition_penalty) : __fmul_rn(l, row.repetition_penalty);
  l = __fsub_rn(l, __fmul_rn(row.frequency_penalty, static_cast<float>(outputs)));
  return outputs > 0 ? __fsub_rn(l, row.presence_penalty) : l;
}

// counts [vocab].
__device__ inline void ApplyPenalties(const SampleRow& row, const uint32_t* counts,
                                      const Chunk& chunk) {
  for (int i = threadIdx.x; i < chunk.count; i += kThreads) {
    const uint32_t count = counts[chunk.first + i];
    if (count != 0) chunk.values[i] = Penalized(row, count, chunk.values[i]);
  }
  __syncthreads();
}

// Adds values [n] to the logits of ids [n], in the list's order where an id comes twice.
__device__ inline void ApplyAdjustments(const int32_t* ids, const float* values, int n,
                                        const Chunk& chunk) {
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    for (int base = 0; base < n; base += 32) {
      const int id = base + lane < n ? ids[base + lane] : -1;
      const bool mine = id >= chunk.first && id < chunk.first + chunk.count;
      const uint32_t same = __match_any_sync(kAllLanes, mine ? id : -1 - lane);
      if (mine && lane == __ffs(same) - 1) {
        float l = chunk.values[id - chunk.first];
        for (uint32_t rest = same; rest != 0; rest &= rest - 1) {
          l += values[base + __ffs(rest) - 1];
        }
        chunk.values[id - chunk.first] = l;
      }
      __syncwarp();
    }
  }
  __syncthreads();
}

}  // namespace rootstock::kernels::cuda
