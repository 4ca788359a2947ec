// FlashInfer's FA2 prefill over pages, for one head_dim.
#pragma once

#include <cmath>
#include <flashinfer/utils.cuh>
#include <stdexcept>
#include <string>

// Of the tile sizes that FlashInfer chooses from, the one that these shapes have where an SM holds
// two blocks in 160 KB: one kernel to compile.
#undef DISPATCH_NUM_MMA_KV
#define DISPATCH_NUM_MMA_KV(max_mma_kv, NUM_MMA_KV, ...)                    \
  if (max_mma_kv < 4) throw std::runtime_error("too little shared memory"); \
  constexpr size_t NUM_MMA_KV = 4;                                          \
  __VA_ARGS__

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "kernels/attention/flashinfer/call.h"

namespace rootstock::kernels::cuda {

template <int kDim>
std::string Fa2(const FlashCall& call, cudaStream_t stream) {
  using Element = __nv_bfloat16;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  using Variant = flashinfer::DefaultAttention</*custom mask*/ false, /*sliding window*/ false,
                                               /*soft cap*/ false, /*alibi*/ false>;
  const HeadShape& heads = call.heads;
  auto* keys = reinterpret_cast<Element*>(call.kv.slab + call.kv.layer_offset);
  const int64_t row = int64_t{heads.num_kv_heads} * kDim;
  const int64_t strides[3] = {static_cast<int64_t>(call.kv.page_bytes / sizeof(Element)), row,
                              kDim};
  const flashinfer::paged_kv_t<Element, int32_t> pages(
      heads.num_kv_heads, call.kv.page_tokens, kDim, call.num_rows, flashinfer::QKVLayout::kNHD,
      keys, keys + call.kv.page_tokens * row, strides, const_cast<int32_t*>(call.rows.page_ids),
      const_cast<int32_t*>(call.rows.page_begin), call.work.last_page_len);
  Params params;
  params.q = static_cast<Element*>(const_cast<void*>(call.qkv));
  params.paged_kv = pages;
  params.q_indptr = const_cast<int32_t*>(call.rows.q_begin);
  params.o = static_cast<Element*>(call.out);
  params.group_size = flashinfer::uint_fastdiv(heads.num_heads / heads.num_kv_heads);
  params.num_qo_heads = heads.num_heads;
  params.q_stride_n = (heads.num_heads + 2 * heads.num_kv_heads) * kDim;
  params.q_stride_h = kDim;
  params.window_left = -1;
  params.sm_scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  params.rope_rcp_scale = 1.0f;
  params.rope_rcp_theta = 1.0f;
  params.request_indices = call.work.row;
  params.qo_tile_indices = call.work.tile;
  params.kv_tile_indices = call.work.zeros;
  params.o_indptr = const_cast<int32_t*>(call.rows.q_begin);
  params.kv_chunk_size_ptr = call.work.zeros;  // read, and of no use without a split
  params.max_total_num_rows = call.num_tokens;
  params.padded_batch_size = call.work.count;
  try {
    const cudaError_t error = flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        /*same strides*/ true, kFa2Tile, kDim, kDim, flashinfer::PosEncodingMode::kNone,
        /*fp16 scores*/ false, flashinfer::MaskMode::kCausal, /*scale factors*/ false, Variant>(
        params, nullptr, nullptr, /*dependent launch*/ false, stream);
    return error == cudaSuccess ? "" : std::string("FA2: ") + cudaGetErrorString(error);
  } catch (const std::exception& e) {
    return std::string("FA2: ") + e.what();
  }
}

}  // namespace rootstock::kernels::cuda
