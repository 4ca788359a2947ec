// Rotary embedding in bf16 for head_dim 128, of long steps: with LoRA by the walk of
// expand_stream_walk.cuh, without by blocks of eight tokens; a token's angles stay in registers
// over the heads. Without LoRA lanes and columns are those of rope_tile.cuh.
#pragma once

#include "kernels/lora/expand_stream_walk.cuh"
#include "kernels/rope/rope_tile.cuh"

namespace rootstock::kernels::cuda {

constexpr int kRopeLongWarps = 8;
constexpr int kRopeLongHeads = 3;  // of a warp on their way together

// A token's heads, as a lane sees them: columns 8g … of both halves.
struct RopeHeads {
  const RopeArgs& args;
  int column;

  __device__ explicit RopeHeads(const RopeArgs& a) : args(a), column(threadIdx.x % 32 / 4 * 8) {}

  __device__ __forceinline__ int count() const {
    return args.heads.num_heads + 2 * args.heads.num_kv_heads;
  }
  __device__ __forceinline__ bool IsV(int head) const {
    return head >= args.heads.num_heads + args.heads.num_kv_heads;
  }
  __device__ __forceinline__ __nv_bfloat16* At(int token, int head) const {
    const size_t row = static_cast<size_t>(token) * count() + head;
    return static_cast<__nv_bfloat16*>(args.qkv) + row * 128 + column;
  }
  __device__ __forceinline__ __nv_bfloat16* OutAt(int token, int head) const {
    const int kv_head = head - args.heads.num_heads;
    if (kv_head < 0) return At(token, head);
    const int at = IsV(head) ? kv_head - args.heads.num_kv_heads : kv_head;
    return KvHead<__nv_bfloat16>(args, token, IsV(head), at) + column;
  }
  __device__ __forceinline__ void LoadAngles(int token, float (&cos)[8], float (&sin)[8]) const {
    const size_t at = static_cast<size_t>(args.positions[token]) * 64 + column;
    Load8(args.cos + at, cos);
    Load8(args.sin + at, sin);
  }
  // All lanes must call it.
  __device__ __forceinline__ void Turn(int head, const float (&cos)[8], const float (&sin)[8],
                                       float (&x)[2][8]) const {
    if (IsV(head)) return;
    const float* norm = head < args.heads.num_heads ? args.q_norm : args.k_norm;
    if (norm != nullptr) NormHead<2>(norm, args.eps, column, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float a = x[0][i], b = x[1][i];
      x[0][i] = a * cos[i] - b * sin[i];
      x[1][i] = b * cos[i] + a * sin[i];
    }
  }
  __device__ __forceinline__ void Store(int token, int head, const float (&x)[2][8]) const {
    __nv_bfloat16* out = OutAt(token, head);
    Store8(out, x[0]);
    Store8(out + 64, x[1]);
  }
};

// grid [tokens / 8, rounded up].
__global__ void __launch_bounds__(32 * kRopeLongWarps, 2) RopeLongKernel(RopeArgs args) {
  GridLaunchDependents();
  const RopeHeads heads(args);
  int token[2];
  float cos[2][8], sin[2][8];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    token[e] = blockIdx.x * 8 + threadIdx.x % 4 * 2 + e;
    heads.LoadAngles(min(token[e], args.tokens - 1), cos[e], sin[e]);
  }
  GridDependencyWait();
  for (int first = threadIdx.x / 32; first < heads.count();
       first += kRopeLongHeads * kRopeLongWarps) {
    uint4 in[kRopeLongHeads][2][2] = {};
#pragma unroll
    for (int i = 0; i < kRopeLongHeads; ++i) {
      const int head = first + i * kRopeLongWarps;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (head >= heads.count() || token[e] >= args.tokens) continue;
        const auto* from = reinterpret_cast<const uint4*>(heads.At(token[e], head));
        in[i][e][0] = from[0];
        in[i][e][1] = from[8];
      }
    }
#pragma unroll
    for (int i = 0; i < kRopeLongHeads; ++i) {
      const int head = first + i * kRopeLongWarps;
      if (head >= heads.count()) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float x[2][8];
        Unpack8(in[i][e][0], x[0]);
        Unpack8(in[i][e][1], x[1]);
        heads.Turn(head, cos[e], sin[e], x);
        if (token[e] < args.tokens) heads.Store(token[e], head, x);
      }
    }
  }
}

struct RopeStream {
  const RopeArgs& args;
  float cos[2][8][2], sin[2][8][2];  // of the lane's tokens and columns

  __device__ __forceinline__ int Column(int head, int part) const { return head * 128 + part * 64; }
  __device__ __forceinline__ void SetTokens(int first, int second) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int position = args.positions[e == 0 ? first : second];
      const size_t at = static_cast<size_t>(position) * 64 + threadIdx.x % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float2 c = *reinterpret_cast<const float2*>(args.cos + at + 8 * n);
        const float2 s = *reinterpret_cast<const float2*>(args.sin + at + 8 * n);
        cos[e][n][0] = c.x, cos[e][n][1] = c.y, sin[e][n][0] = s.x, sin[e][n][1] = s.y;
      }
    }
  }
  __device__ __forceinline__ void Norm(const float* weight, float (&x)[2][8][4]) const {
    float sum[2] = {};
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c / 2] += x[p][n][c] * x[p][n][c];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      sum[e] += __shfl_xor_sync(~0u, sum[e], 1);
      sum[e] += __shfl_xor_sync(~0u, sum[e], 2);
      sum[e] = rsqrtf(sum[e] / 128.0f + args.eps);
    }
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          x[p][n][c] *= sum[c / 2] * weight[p * 64 + n * 8 + threadIdx.x % 4 * 2 + c % 2];
        }
  }
  __device__ __forceinline__ void Apply(int head, float (&x)[2][8][4]) const {
    if (head >= args.heads.num_heads + args.heads.num_kv_heads) return;
    const float* norm = head < args.heads.num_heads ? args.q_norm : args.k_norm;
    if (norm != nullptr) Norm(norm, x);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float a = x[0][n][c], b = x[1][n][c];
        x[0][n][c] = a * cos[c / 2][n][c % 2] - b * sin[c / 2][n][c % 2];
        x[1][n][c] = b * cos[c / 2][n][c % 2] + a * sin[c / 2][n][c % 2];
      }
  }
  __device__ __forceinline__ __nv_bfloat16* Out(int token, int head, int part) const {
    return RopeHeads(args).OutAt(token, head) - RopeHeads(args).column + part * 64;
  }
};

__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    RopeStreamKernel(RopeArgs args, LoraStep step, LoraTargets targets) {
  RopeStream op{args};
  const int heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  WalkStream<2, 1, 2>(step, targets, args.tokens, heads,
                      static_cast<const __nv_bfloat16*>(args.qkv), heads * 128, op);
}

}  // namespace rootstock::kernels::cuda
