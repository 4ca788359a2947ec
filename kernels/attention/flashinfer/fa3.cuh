// FlashInfer's FA3 prefill over pages (sm_90a), for one head_dim.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <sstream>
#include <string>

// Instead of FlashInfer's header of this guard, which includes all of CUTLASS's utilities.
#define FLASHINFER_CUTLASS_UTILS_CUH_
#include <cutlass/cutlass.h>
#include <cutlass/numeric_types.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>

namespace flashinfer {
template <typename T>
struct cutlass_dtype {
  using type = T;
};
template <>
struct cutlass_dtype<__nv_bfloat16> {
  using type = cutlass::bfloat16_t;
};
template <typename T>
using cutlass_dtype_t = typename cutlass_dtype<T>::type;
}  // namespace flashinfer

#include <flashinfer/attention/hopper/named_barrier.cuh>
#include <flashinfer/attention/hopper/utils.cuh>
#include <flashinfer/math.cuh>

// FlashInfer's epilogue arrives at a barrier and then waits there, every thread of it, where the
// barrier is for one arrival of each: half of the warps, a little ahead, open it by arriving twice
// and store rows that the others have not put into shared memory yet. With a wait for the arrival
// it is two whole barriers.
#define arrive sync
#include <flashinfer/attention/hopper/epilogue.cuh>
#undef arrive

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "kernels/attention/flashinfer/call.h"

namespace rootstock::kernels::cuda {

template <int kDim>
std::string Fa3(const FlashCall& call, cudaStream_t stream) {
  using Element = cutlass::bfloat16_t;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  const HeadShape& heads = call.heads;
  const int64_t row = int64_t{heads.num_kv_heads} * kDim;
  const int64_t page = static_cast<int64_t>(call.kv.page_bytes / sizeof(Element));
  Params params = {};
  params.q_ptr = static_cast<Element*>(const_cast<void*>(call.qkv));
  params.k_ptr = reinterpret_cast<Element*>(call.kv.slab + call.kv.layer_offset);
  params.v_ptr = params.k_ptr + call.kv.page_tokens * row;
  params.o_ptr = static_cast<Element*>(call.out);
  params.qo_tile_indices = call.work.tile;
  params.qo_indptr = call.work.q_begin;
  params.kv_indptr = call.work.page_begin;
  params.kv_indices = const_cast<int32_t*>(call.rows.page_ids);
  params.qo_lens = call.work.q_len;
  params.kv_lens = call.work.kv_len;
  params.head_indices = call.work.head;
  params.work_indptr = call.work.block_begin;
  params.batch_indices = call.work.row;
  params.additional_params.sm_scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  params.q_stride_n = int64_t{heads.num_heads + 2 * heads.num_kv_heads} * kDim;
  params.o_stride_n = int64_t{heads.num_heads} * kDim;
  params.k_stride_n = params.v_stride_n = row;
  params.q_stride_h = params.o_stride_h = params.k_stride_h = params.v_stride_h = kDim;
  params.nnz_qo = call.num_tokens;
  params.k_page_stride = params.v_page_stride = page;
  params.num_qo_heads = heads.num_heads;
  params.num_kv_heads = heads.num_kv_heads;
  params.group_size = heads.num_heads / heads.num_kv_heads;
  params.page_size = call.kv.page_tokens;
  params.window_left = -1;
  params.causal = true;
  try {
    const cudaError_t error = flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        kDim, kDim, flashinfer::MaskMode::kCausal, /*sliding window*/ false,
        /*one schedule for all heads*/ false, flashinfer::StandardAttention>(
        params, /*dependent launch*/ false, stream);
    return error == cudaSuccess ? "" : std::string("FA3: ") + cudaGetErrorString(error);
  } catch (const std::exception& e) {
    return std::string("FA3: ") + e.what();
  }
}

}  // namespace rootstock::kernels::cuda
