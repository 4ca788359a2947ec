#include <cudaTypedefs.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/decode_cuda.h"
#include "kernels/attention/decode_feed.cuh"
#include "kernels/attention/decode_fold.cuh"
#include "kernels/attention/decode_schedule.cuh"
#include "kernels/attention/decode_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pdl.cuh"

namespace rootstock::kernels::cuda {
namespace {

template <int kDim>
size_t SharedBytes(int group, int rows) {
  return TileExchange<kDim>::Bytes(group) + TileFeed<kDim>::Ring::Bytes(kWarps) +
         ScheduleBytes(rows);
}

struct DecodeArgs {
  AttentionRows rows;
  int num_rows;
  HeadShape heads;
  PageReader pages;
  const __nv_bfloat16* qkv;  // [tokens, (num_heads + 2 · num_kv_heads) · head_dim]
  __nv_bfloat16* out;        // [tokens, num_heads · head_dim]
  FoldMemory memory;
  float scale;  // log2(e) / sqrt(head_dim)
};

// Outputs of pads are 0. The first block waits in any case (pdl.cuh).
__device__ void ClearPads(const DecodeArgs& a, const Schedule& s) {
  if (blockIdx.x == 0) GridDependencyWait();
  const int width = a.heads.num_heads * a.heads.head_dim;
  for (int r = blockIdx.x; r < a.num_rows; r += gridDim.x) {
    if (s.kv_len[r] != 0) continue;
    GridDependencyWait();
    const int first = a.rows.q_begin[r] * width / 8, last = a.rows.q_begin[r + 1] * width / 8;
    for (int i = first + threadIdx.x; i < last; i += kDecodeThreads) {
      reinterpret_cast<uint4*>(a.out)[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

// The warp's tile of a chunk, to `exchange`.
template <int kDim>
__device__ __forceinline__ void SumTile(TileFeed<kDim>& feed, TileRegisters<kDim>& r, float scale,
                                        TileExchange<kDim>& exchange) {
  const int valid = feed.Next();
  TileSums<kDim> sums;
  uint32_t weights[2];
  if (valid > 0) {
    float score[4];
    feed.TakeKeys(r);
    TileScores(r, valid, scale, score);
    feed.CopyKeys();
    TileWeights(score, sums, weights);
    feed.TakeValues(valid, r);
    TileValues(r, weights, sums);
  } else {
    feed.CopyKeys();
  }
  feed.CopyValues();
  __syncthreads();
  if (valid > 0) {
    exchange.Put(sums);
  } else {
    exchange.PutNothing();
  }
}

// out = softmax(q · kᵀ / sqrt(head_dim)) · v of rows with one query. Grid: any number of blocks,
// each takes its share of the chunks. A warp takes a tile of each chunk; tiles are summed through
// shared memory; what other blocks must know goes through global memory (decode_fold.cuh). The next
// kernel may start at once: its blocks find room where ours have ended.
template <int kDim, int kUnits>
__global__ void __launch_bounds__(kDecodeThreads, 3)
    DecodeKernel(const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(1024) std::byte shared[];
  GridLaunchDependents();
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) PrefetchMap(&a.pages.map);
#endif
  const int group = a.heads.num_heads / a.heads.num_kv_heads, kv_heads = a.heads.num_kv_heads;
  TileExchange<kDim> exchange(shared + TileFeed<kDim>::Ring::Bytes(kWarps), group);
  Schedule s = ScheduleAt(exchange.end(), a.num_rows);
  ReadSchedule(a.rows, a.num_rows, kv_heads, s);
  const unsigned total = s.places_before[a.num_rows] * kv_heads;
  const Shares shares = {total, min(gridDim.x, total)};
  if (blockIdx.x >= shares.blocks) return ClearPads(a, s);
  Cursor at = CursorAt(s, a.num_rows, kv_heads, shares.Begin(blockIdx.x));
  const int end = shares.Begin(blockIdx.x + 1);
  if (at.place(s) >= end) return ClearPads(a, s);

  TileFeed<kDim> feed(a.pages, s, a.num_rows, at, end, shared);
  feed.Begin();
  ClearPads(a, s);
  GridDependencyWait();
  feed.CopyFresh();
  TileRegisters<kDim> r;
  Fold<kDim, kUnits> fold(a.memory, shares, s, a.heads, a.out);
  const Piece front = PieceAt(s, at, end);
  Piece piece = front;
  const size_t q_width = static_cast<size_t>(a.heads.num_heads + 2 * kv_heads) * kDim;
  for (bool first = true; at.place(s) < end; first = false) {
    if (first || at.chunk == 0) {
      piece = PieceAt(s, at, end);
      LoadQueries(a.qkv + s.token[at.row] * q_width + at.kv_head * group * kDim, group, r);
    }
    SumTile(feed, r, a.scale, exchange);
    __syncthreads();
    PartsOf<kUnits> chunk;
    exchange.Take(chunk);
    fold.Add(piece, at.chunk, chunk);
    Advance(s, a.num_rows, kv_heads, at);
  }
  fold.Finish(front, piece);
}

struct Choice {
  void (*kernel)(DecodeArgs);
  size_t shared_bytes;
};

Choice Choose(const AttentionShapes& shapes, int rows) {
  const int group = shapes.heads.num_heads / shapes.heads.num_kv_heads;
  if (shapes.heads.head_dim == 64) {
    return {DecodeKernel<64, 1>, SharedBytes<64>(group, rows)};
  }
  return {group <= 4 ? DecodeKernel<128, 1> : DecodeKernel<128, 2>, SharedBytes<128>(group, rows)};
}

// The driver's cuTensorMapEncodeTiled; null before sm_90, which has no use for it.
cudaError_t FindEncode(int device, void** encode) {
  *encode = nullptr;
  int major = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess || major < 9) return error;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", encode, 12000,
                                           cudaEnableDefault, &found);
  return error == cudaSuccess && found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported
                                                                      : error;
}

// Any page that a device may hold is within the map.
bool EncodePages(void* encode, const PagedKv& kv, const HeadShape& heads, CUtensorMap* map) {
  constexpr cuuint64_t kMemory = cuuint64_t{1} << 40;
  const cuuint32_t pieces = heads.head_dim / kPieceDims;
  const cuuint64_t token_bytes = cuuint64_t{2} * heads.num_kv_heads * heads.head_dim;
  const cuuint64_t sizes[4] = {kPieceDims, cuuint64_t{2} * kv.page_tokens,
                               cuuint64_t{pieces} * heads.num_kv_heads,
                               std::min<cuuint64_t>(kMemory / kv.page_bytes, cuuint64_t{1} << 31)};
  const cuuint64_t strides[3] = {token_bytes, 2 * kPieceDims, kv.page_bytes};
  const cuuint32_t box[4] = {kPieceDims, kTile, pieces, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
             map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, kv.slab + kv.layer_offset, sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

bool DecodeHas(const AttentionShapes& shapes) {
  const HeadShape& heads = shapes.heads;
  return shapes.type == Type::kBF16 && (heads.head_dim == 64 || heads.head_dim == 128) &&
         heads.num_heads / heads.num_kv_heads <= kMaxGroup && shapes.page_tokens % kTile == 0 &&
         shapes.page_bytes % 16 == 0;
}

std::unique_ptr<DecodeAttention> DecodeAttention::Make(const AttentionShapes& shapes,
                                                       std::string* error) {
  std::unique_ptr<DecodeAttention> decode(new DecodeAttention());
  decode->shapes_ = shapes;
  const HeadShape& heads = shapes.heads;
  const Choice choice = Choose(shapes, shapes.max_rows);
  int device = 0, processors = 0, blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) status = FindEncode(device, &decode->encode_);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(choice.shared_bytes));
  }
  if (status == cudaSuccess) {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, choice.kernel, kDecodeThreads,
                                                           choice.shared_bytes);
  }
  decode->blocks_ = processors * blocks;
  const size_t chunks =
      (size_t{static_cast<unsigned>(shapes.max_pages)} * shapes.page_tokens / kChunk +
       shapes.max_rows) *
      heads.num_kv_heads;
  if (status == cudaSuccess && (blocks == 0 || chunks * decode->blocks_ >= (size_t{1} << 32))) {
    const int tokens = shapes.max_pages / std::max(shapes.max_rows, 1) * shapes.page_tokens;
    *error = "attention: a step of max_num_seqs " + std::to_string(shapes.max_rows) +
             " sequences of " + std::to_string(tokens) +
             " tokens is too large: lower --max-num-seqs or --max-model-len of the coordinator";
    return nullptr;
  }
  decode->Arrange(chunks);
  if (status == cudaSuccess) status = cudaMalloc(&decode->workspace_, decode->workspace_bytes_);
  if (status == cudaSuccess) {
    status = cudaMemset(decode->workspace_ + decode->done_offset_, 0,
                        decode->workspace_bytes_ - decode->done_offset_);
  }
  // The steps' stream does not wait for the default one.
  if (status == cudaSuccess) status = cudaStreamSynchronize(nullptr);
  if (status != cudaSuccess) {
    *error = "attention: " + std::to_string(decode->workspace_bytes_) +
             " bytes of workspace: " + cudaGetErrorString(status);
    return nullptr;
  }
  return decode;
}

void DecodeAttention::Arrange(size_t chunks) {
  const HeadShape& heads = shapes_.heads;
  const size_t group = heads.num_heads / heads.num_kv_heads;
  const size_t row_heads = size_t{static_cast<unsigned>(shapes_.max_rows)} * heads.num_kv_heads;
  const size_t sections = chunks / kSection + row_heads;
  section_slots_ = size_t{kChunkSlots + kSpanSlots} * blocks_;
  const size_t slots = section_slots_ + sections;
  softmax_offset_ = Align(slots * group * heads.head_dim * sizeof(float));
  done_offset_ = softmax_offset_ + Align(slots * group * sizeof(float2));
  row_done_offset_ = done_offset_ + Align(sections * sizeof(int));
  workspace_bytes_ = row_done_offset_ + row_heads * sizeof(int);
}

DecodeAttention::~DecodeAttention() { cudaFree(workspace_); }

cudaError_t DecodeAttention::Run(const AttentionBatch& batch, const PagedKv& kv, const void* qkv,
                                 void* out, cudaStream_t stream) const {
  DecodeArgs args;
  args.rows = batch.device;
  args.num_rows = batch.num_rows;
  args.heads = shapes_.heads;
  args.pages = {{},
                reinterpret_cast<const __nv_bfloat16*>(kv.slab + kv.layer_offset),
                kv.page_bytes / 2,
                batch.device.page_ids,
                kv.page_tokens,
                shapes_.heads.num_kv_heads,
                PageReader::Inverse(kv.page_tokens / kTile)};
  if (encode_ != nullptr && !EncodePages(encode_, kv, shapes_.heads, &args.pages.map)) {
    return cudaErrorInvalidValue;
  }
  args.qkv = static_cast<const __nv_bfloat16*>(qkv);
  args.out = static_cast<__nv_bfloat16*>(out);
  args.memory = {reinterpret_cast<float4*>(workspace_),
                 reinterpret_cast<float2*>(workspace_ + softmax_offset_),
                 reinterpret_cast<int*>(workspace_ + done_offset_),
                 reinterpret_cast<int*>(workspace_ + row_done_offset_),
                 static_cast<int>(section_slots_)};
  args.scale = 1.4426950408889634f / std::sqrt(static_cast<float>(shapes_.heads.head_dim));
  const Choice choice = Choose(shapes_, batch.num_rows);
  return LaunchDependent(choice.kernel, dim3(blocks_), dim3(kDecodeThreads), choice.shared_bytes,
                         stream, 1, args);
}

}  // namespace rootstock::kernels::cuda
