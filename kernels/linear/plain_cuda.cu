#include <cuda_bf16.h>

#include "kernels/linear/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kTile = 16;

__device__ float Read(const float* p) { return *p; }
__device__ float Read(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ void Write(float* p, float v) { *p = v; }
__device__ void Write(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }

// out[m][n] = Σ_k x[m][k] · w[n][k] + bias[n]: a thread for each output, tiles through shared
// memory.
template <typename In, typename Out>
__global__ void Plain(const In* x, const In* w, const float* bias, Out* out, int m, int n, int k) {
  __shared__ float xs[kTile][kTile + 1];
  __shared__ float ws[kTile][kTile + 1];
  const int first_row = blockIdx.y * kTile;
  const int first_col = blockIdx.x * kTile;
  const int row = first_row + threadIdx.y;
  const int col = first_col + threadIdx.x;
  float sum = 0.0f;
  for (int first = 0; first < k; first += kTile) {
    const int at = first + threadIdx.x;
    const int w_row = first_col + threadIdx.y;
    xs[threadIdx.y][threadIdx.x] =
        row < m && at < k ? Read(x + static_cast<size_t>(row) * k + at) : 0.0f;
    ws[threadIdx.y][threadIdx.x] =
        w_row < n && at < k ? Read(w + static_cast<size_t>(w_row) * k + at) : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum = fmaf(xs[threadIdx.y][i], ws[threadIdx.x][i], sum);
    __syncthreads();
  }
  if (row >= m || col >= n) return;
  Write(out + static_cast<size_t>(row) * n + col, bias == nullptr ? sum : sum + bias[col]);
}

template <typename In, typename Out>
cudaError_t LaunchPlain(const LinearArgs& a, cudaStream_t stream) {
  const dim3 grid((a.n + kTile - 1) / kTile, (a.m + kTile - 1) / kTile);
  Plain<In, Out><<<grid, dim3(kTile, kTile), 0, stream>>>(static_cast<const In*>(a.x),
                                                          static_cast<const In*>(a.w), a.bias,
                                                          static_cast<Out*>(a.out), a.m, a.n, a.k);
  return cudaGetLastError();
}

__global__ void Round(const float* in, int n, __nv_bfloat16* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16_rn(in[i]);
}

}  // namespace

cudaError_t PlainLinear(const LinearArgs& args, cudaStream_t stream) {
  const bool wide_out = args.out_type == Type::kF32;
  if (args.type == Type::kF32) {
    return wide_out ? LaunchPlain<float, float>(args, stream)
                    : LaunchPlain<float, __nv_bfloat16>(args, stream);
  }
  return wide_out ? LaunchPlain<__nv_bfloat16, float>(args, stream)
                  : LaunchPlain<__nv_bfloat16, __nv_bfloat16>(args, stream);
}

cudaError_t RoundToBf16(const float* in, int n, void* out, cudaStream_t stream) {
  Round<<<(n + 255) / 256, 256, 0, stream>>>(in, n, static_cast<__nv_bfloat16*>(out));
  return cudaGetLastError();
}

}  // namespace rootstock::kernels::cuda
