#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kQueries = 16;  // pairs (token, query head) of one KV head, heads fastest
constexpr int kKeys = 32;
constexpr int kThreads = 128;
constexpr int kMaxDim = 256;
constexpr float kNone = -3.0e38f;  // below every score

struct PlainArgs {
  AttentionRows rows;
  int num_rows;
  HeadShape heads;
  const std::byte* layer;  // of page 0
  size_t page_bytes;
  int page_tokens;
  PlainRows which;
  const void* qkv;  // [tokens, (num_heads + 2 · num_kv_heads) · head_dim]
  void* out;        // [tokens, num_heads · head_dim]
};

// Pairs of one row and KV head that a block takes, and what they see.
struct Block {
  int row, token, count;  // `count` pairs from pair `pair` of the row; token: the row's first
  int pair, kv_len, q_len;
};

__device__ __forceinline__ void Load8(const float* from, float* to) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void Load8(const __nv_bfloat16* from, float* to) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void Store(float* to, float x) { *to = x; }
__device__ __forceinline__ void Store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// Row i has the blocks from floor(q_begin[i] · group / kQueries) + i on: room enough for its own,
// found without a prefix sum.
__device__ Block FindBlock(const PlainArgs& a, int group, int index) {
  int low = 0, high = a.num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.rows.q_begin[middle] * group / kQueries + middle <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  Block b;
  b.row = low;
  b.token = a.rows.q_begin[low];
  b.q_len = a.rows.q_begin[low + 1] - b.token;
  b.kv_len = a.rows.kv_len[low];
  b.pair = (index - (b.token * group / kQueries + low)) * kQueries;
  b.count = min(kQueries, b.q_len * group - b.pair);
  return b;
}

template <typename T>
__device__ const T* KeyAt(const PlainArgs& a, const Block& b, int kv_head, int position) {
  const int page = a.rows.page_ids[a.rows.page_begin[b.row] + position / a.page_tokens];
  const T* keys = reinterpret_cast<const T*>(a.layer + page * a.page_bytes);
  const int slot = position % a.page_tokens;
  return keys + (static_cast<size_t>(slot) * a.heads.num_kv_heads + kv_head) * a.heads.head_dim;
}

// Keys and values of positions first … first + kKeys - 1 (0 past `end`) to k, v [kKeys][stride].
template <typename T>
__device__ void Stage(const PlainArgs& a, const Block& b, int kv_head, int first, int end,
                      int stride, float* k, float* v) {
  const int parts = a.heads.head_dim / 8;
  const size_t to_values =
      static_cast<size_t>(a.page_tokens) * a.heads.num_kv_heads * a.heads.head_dim;
  for (int i = threadIdx.x; i < kKeys * parts; i += kThreads) {
    const int key = i / parts, part = i % parts * 8;
    float* k_to = k + key * stride + part;
    float* v_to = v + key * stride + part;
    if (first + key < end) {
      const T* from = KeyAt<T>(a, b, kv_head, first + key) + part;
      Load8(from, k_to);
      Load8(from + to_values, v_to);
    } else {
      for (int j = 0; j < 8; ++j) k_to[j] = v_to[j] = 0.0f;
    }
  }
}

// Scores of one key for queries 4 · w … 4 · w + 3 of warp w; then the running softmax: weights to
// p [kQueries][kKeys], the factor of the sums so far to shrink, Σ weights in sum (of every lane).
__device__ void Scores(const Block& b, int group, int dim, int stride, const float* q,
                       const float* k, int first, float scale, float (&top)[4], float (&sum)[4],
                       float* p, float* shrink) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float dot[4] = {};
  for (int d = 0; d < dim; d += 4) {
    const float4 x = *reinterpret_cast<const float4*>(k + lane * stride + d);
    for (int i = 0; i < 4; ++i) {
      const float4 y = *reinterpret_cast<const float4*>(q + (4 * warp + i) * dim + d);
      dot[i] = fmaf(x.x, y.x, dot[i]);
      dot[i] = fmaf(x.y, y.y, dot[i]);
      dot[i] = fmaf(x.z, y.z, dot[i]);
      dot[i] = fmaf(x.w, y.w, dot[i]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int query = 4 * warp + i;
    const int last = b.kv_len - b.q_len + (b.pair + query) / group;
    const bool seen = query < b.count && first + lane <= last;
    const float score = seen ? dot[i] * scale : kNone;
    float highest = fmaxf(score, top[i]);
    for (int step = 16; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    }
    const float weight = seen ? expf(score - highest) : 0.0f;
    float total = weight;
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    const float factor = expf(top[i] - highest);
    sum[i] = fmaf(sum[i], factor, total);
    top[i] = highest;
    p[query * kKeys + lane] = weight;
    if (lane == 0) shrink[query] = factor;
  }
}

// acc[i] = shrink[i] · acc[i] + Σ_key p[i][key] · v[key][column]
__device__ void AddValues(const float* p, const float* shrink, const float* v, int stride,
                          float (&acc)[kQueries]) {
  for (int i = 0; i < kQueries; ++i) acc[i] *= shrink[i];
  for (int key = 0; key < kKeys; key += 4) {
    float value[4];
    for (int j = 0; j < 4; ++j) value[j] = v[(key + j) * stride];
    for (int i = 0; i < kQueries; ++i) {
      const float4 w = *reinterpret_cast<const float4*>(p + i * kKeys + key);
      acc[i] = fmaf(w.x, value[0], acc[i]);
      acc[i] = fmaf(w.y, value[1], acc[i]);
      acc[i] = fmaf(w.z, value[2], acc[i]);
      acc[i] = fmaf(w.w, value[3], acc[i]);
    }
  }
}

template <typename T>
__device__ void LoadQueries(const PlainArgs& a, const Block& b, int kv_head, int group, float* q) {
  const int dim = a.heads.head_dim, parts = dim / 8;
  const size_t width = static_cast<size_t>(a.heads.num_heads + 2 * a.heads.num_kv_heads) * dim;
  for (int i = threadIdx.x; i < kQueries * parts; i += kThreads) {
    const int query = i / parts, part = i % parts * 8, pair = b.pair + query;
    float* to = q + query * dim + part;
    if (query < b.count) {
      const T* token = static_cast<const T*>(a.qkv) + (b.token + pair / group) * width;
      Load8(token + (kv_head * group + pair % group) * dim + part, to);
    } else {
      for (int j = 0; j < 8; ++j) to[j] = 0.0f;
    }
  }
}

// out = softmax(q · kᵀ / sqrt(head_dim)) · v over the positions up to each query's own.
// Grid: (blocks of pairs, KV heads). Thread: column threadIdx.x and threadIdx.x + 128 of the sums.
template <typename T>
__global__ void __launch_bounds__(kThreads) PlainKernel(const PlainArgs a) {
  extern __shared__ float shared[];
  const int dim = a.heads.head_dim, stride = dim + 4;
  const int group = a.heads.num_heads / a.heads.num_kv_heads, kv_head = blockIdx.y;
  const Block b = FindBlock(a, group, blockIdx.x);
  if (b.count <= 0) return;
  if (a.which == PlainRows::kSeveralQueries && (b.q_len == 1 || b.kv_len == 0)) return;
  float* q = shared;                     // [kQueries][dim]
  float* k = q + kQueries * dim;         // [kKeys][stride]
  float* v = k + kKeys * stride;         // [kKeys][stride]
  float* p = v + kKeys * stride;         // [kQueries][kKeys]
  float* shrink = p + kQueries * kKeys;  // [kQueries]
  float* total = shrink + kQueries;      // [kQueries]
  LoadQueries<T>(a, b, kv_head, group, q);
  const int end = b.kv_len == 0 ? 0 : b.kv_len - b.q_len + (b.pair + b.count - 1) / group + 1;
  const float scale = 1.0f / sqrtf(static_cast<float>(dim));
  float top[4] = {kNone, kNone, kNone, kNone}, sum[4] = {};
  float acc[kMaxDim / kThreads][kQueries] = {};
  for (int first = 0; first < end; first += kKeys) {
    __syncthreads();
    Stage<T>(a, b, kv_head, first, end, stride, k, v);
    __syncthreads();
    Scores(b, group, dim, stride, q, k, first, scale, top, sum, p, shrink);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < kMaxDim / kThreads; ++half) {
      const int column = half * kThreads + threadIdx.x;
      if (column < dim) AddValues(p, shrink, v + column, stride, acc[half]);
    }
  }
  for (int i = 0; i < 4; ++i) total[threadIdx.x / 32 * 4 + i] = sum[i];
  __syncthreads();
  const size_t width = static_cast<size_t>(a.heads.num_heads) * dim;
#pragma unroll
  for (int half = 0; half < kMaxDim / kThreads; ++half) {
    const int column = half * kThreads + threadIdx.x;
    if (column >= dim) continue;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (i >= b.count) continue;
      const int pair = b.pair + i;
      const int head = kv_head * group + pair % group;
      T* to = static_cast<T*>(a.out) + (b.token + pair / group) * width + head * dim + column;
      Store(to, end > 0 ? acc[half][i] / total[i] : 0.0f);
    }
  }
}

}  // namespace

cudaError_t PlainAttention(const AttentionShapes& shapes, const AttentionBatch& batch,
                           const PagedKv& kv, const void* qkv, void* out, PlainRows which,
                           cudaStream_t stream) {
  const int dim = shapes.heads.head_dim;
  const int group = shapes.heads.num_heads / shapes.heads.num_kv_heads;
  const PlainArgs args = {batch.device,
                          batch.num_rows,
                          shapes.heads,
                          kv.slab + kv.layer_offset,
                          kv.page_bytes,
                          kv.page_tokens,
                          which,
                          qkv,
                          out};
  const size_t shared =
      sizeof(float) * (kQueries * dim + 2 * kKeys * (dim + 4) + kQueries * (kKeys + 2));
  const auto kernel = shapes.type == Type::kF32 ? PlainKernel<float> : PlainKernel<__nv_bfloat16>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  const int64_t blocks = int64_t{batch.num_tokens} * group / kQueries + batch.num_rows;
  const dim3 grid(static_cast<unsigned>(blocks), shapes.heads.num_kv_heads);
  kernel<<<grid, kThreads, shared, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace rootstock::kernels::cuda
