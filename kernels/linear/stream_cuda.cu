#include <cudaTypedefs.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/linear/stream_cuda.h"
#include "kernels/linear/stream_kernel.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kSms = 132;  // the tiles' count aims at; any GPU computes the same tiles
constexpr int kMaxTileRows = 248;
constexpr int kMaxShared = 232448;  // bytes a block
constexpr int kBarrierBytes = 4 * 8 * kMaxStages + 16;
// For a kernel that shares: bytes of shared memory for two small blocks of it, and the bytes of w
// and x that are still to be loaded when it may start, which is its time: the more the longer its
// own loads may take beside these, but what it and the kernel behind it fetch must not leave the
// second cache before its use.
constexpr int kSharedRoom = 10240;
constexpr int SharedAhead(int token_rows) { return token_rows < 64 ? 72 << 20 : 512 << 20; }
// Bytes of w that a block which shares has under way at most, of what its ring holds. The other
// kernels' loads, each of a chain, wait behind them: 200 KB a block are 6 µs of memory.
constexpr int kSharedPace = 48 << 10;

int CeilDiv(int a, int b) { return (a + b - 1) / b; }
int RoundUp(int a, int unit) { return CeilDiv(a, unit) * unit; }
int Boxes(int k) { return CeilDiv(k, kBoxK); }
int TokenRows(int m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }
int MmaBlocks(int rows) { return rows <= 64 ? 1 : rows <= 128 ? 2 : 4; }
bool OnSixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

using Kernel = void (*)(const CUtensorMap, const CUtensorMap, const StreamParams);

template <int N>
Kernel PickForm(int blocks, StreamForm form) {
  if (form == StreamForm::kGated) {
    if constexpr (N == 8) return nullptr;
    return StreamKernel<N, 4, StreamForm::kGated>;
  }
  if (blocks == 1) return StreamKernel<N, 1, StreamForm::kAny>;
  if (blocks == 2) return StreamKernel<N, 2, StreamForm::kAny>;
  return form == StreamForm::kWhole ? StreamKernel<N, 4, StreamForm::kWhole>
                                    : StreamKernel<N, 4, StreamForm::kAny>;
}

Kernel Pick(int token_rows, int blocks, StreamForm form) {
  switch (token_rows) {
    case 8:
      return PickForm<8>(blocks, form);
    case 16:
      return PickForm<16>(blocks, form);
    case 32:
      return PickForm<32>(blocks, form);
    default:
      return PickForm<64>(blocks, form);
  }
}

struct Launch {
  StreamParams params;
  int grid = 0;
  int shared_bytes = 0;
};

int BoxesBytes(int rows, int boxes) { return boxes * rows * kBoxRowBytes; }

// Where a tile has fewer rows than its instructions, they read on behind it (what they make of that
// is not stored): that much must lie behind the ring of w.
int OverRead(int rows, int behind) {
  return BoxesBytes(std::max(0, MmaBlocks(rows) * kMmaRows - rows - behind), 1);
}

// Of RankParts.
int PartsBytes(const StreamTile& tile, int token_rows) {
  const int groups = CeilDiv(tile.rows / 8, tile.split);
  return (tile.split - 1) * groups * 8 * token_rows * static_cast<int>(sizeof(float));
}

// Shared memory: ring of w | ring of x | over-read | sums, unless they lie over the ring | the
// other ranks' sums | barriers.
Launch Plan(const LinearArgs& a, StreamTile tile, StreamRing ring, int token_rows) {
  Launch launch;
  StreamParams& p = launch.params;
  p.bias = a.bias;
  p.out = a.out;
  p.out_f32 = a.out_type == Type::kF32;
  p.m = a.m;
  p.n = a.n;
  p.boxes = Boxes(a.k);
  p.rows = tile.rows;
  p.up_row = a.gated ? a.n / 2 : 0;
  p.tiles = CeilDiv(a.n, tile.rows);
  p.split = tile.split;
  p.split_log = tile.split == 4 ? 2 : tile.split - 1;
  launch.grid = tile.split == 1 ? std::min(p.tiles, kSms) : tile.split * p.tiles;

  const int blocks = MmaBlocks(tile.rows);
  const int sums = token_rows * kStagePitch * static_cast<int>(sizeof(float));
  const bool over_ring = launch.grid == tile.split * p.tiles;
  p.sums_blocks = over_ring ? blocks : 1;
  const int parts = PartsBytes(tile, token_rows);
  const int reserved = kBarrierBytes + parts + (over_ring ? 0 : sums);
  const int own_boxes = CeilDiv(p.boxes, tile.split);
  const auto x_stages = [&](int boxes) { return std::clamp(ring.x_boxes / boxes, 2, kMaxStages); };
  const auto over_read = [&](int boxes) {
    return OverRead(tile.rows, x_stages(boxes) * boxes * token_rows);
  };
  const auto w_stages = [&](int boxes) {
    return (ring.max_bytes - reserved - over_read(boxes) -
            BoxesBytes(token_rows, x_stages(boxes) * boxes)) /
           BoxesBytes(tile.rows, boxes);
  };
  p.stage_boxes = std::min(ring.stage_boxes, own_boxes);
  while (p.stage_boxes > 1 && w_stages(p.stage_boxes) < 2) --p.stage_boxes;
  p.w_stages = std::min({w_stages(p.stage_boxes), ring.max_stages, kMaxStages});
  p.x_stages = x_stages(p.stage_boxes);
  p.pace = ring.pace;
  p.pace_always = ring.pace_always;
  p.trigger = ring.trigger + std::max(0, p.w_stages - p.x_stages);
  const int ring_end = BoxesBytes(tile.rows, p.w_stages * p.stage_boxes) +
                       BoxesBytes(token_rows, p.x_stages * p.stage_boxes) +
                       over_read(p.stage_boxes);
  p.sums_offset = over_ring ? 0 : RoundUp(ring_end, 16);
  p.parts_offset =
      RoundUp(over_ring ? std::max(ring_end, blocks * sums) : p.sums_offset + sums, 16);
  p.barrier_offset = p.parts_offset + parts;
  launch.shared_bytes = p.barrier_offset + kBarrierBytes;
  return launch;
}

// A row-major bf16 matrix [rows, k] in boxes of 64 k and box_rows rows; what lies outside is 0.
bool Encode(void* encode, const void* data, int rows, int k, int box_rows, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[2] = {kBoxK, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
             map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

// One wave of blocks where n allows. A tile of few rows reads much of x beside its weights: then
// blocks share k and have more rows. Clusters of 4 fit on fewer SMs.
StreamTile StreamTile::For(int n, int k) {
  const int rows = RoundUp(CeilDiv(n, kSms), 8);
  if (rows < 32 && Boxes(k) >= 16) return {RoundUp(std::max(64, CeilDiv(n, 30)), 8), 4};
  if (rows < 64 && Boxes(k) >= 16) return {RoundUp(CeilDiv(n, kSms / 2), 8), 2};
  const int waves = CeilDiv(rows, kMaxTileRows);
  return {RoundUp(CeilDiv(n, kSms * waves), 8), 1};
}

StreamTile StreamTile::ForGated(int n, int k) {
  StreamTile tile = For(n, k);
  tile.rows = std::min(RoundUp(tile.rows, 16), kMaxTileRows / 16 * 16);
  return tile;
}

// While the ring is filled few bytes are under way, else the small kernel ahead waits for its own
// behind them. x comes from the second cache, but slowly: it takes as much time as many weights.
StreamRing StreamRing::For(StreamTile tile, int k, int token_rows) const {
  constexpr int kPacedBytes = 56 << 10;
  StreamRing ring = *this;
  ring.stage_boxes = tile.rows <= 128 ? 2 : 1;
  ring.x_boxes = token_rows < 32 ? 16 : tile.rows <= 128 ? 10 : 6;
  if (k / tile.split <= 4096) {
    ring.pace = CeilDiv(kPacedBytes, BoxesBytes(tile.rows, ring.stage_boxes));
  }
  if (token_rows < 64) ring.trigger = 6;
  return ring;
}

std::unique_ptr<StreamLinear> StreamLinear::Create(std::string* error) {
  const auto failed = [&](cudaError_t what) {
    if (what == cudaSuccess) return false;
    *error = std::string("weight-streaming kernel: ") + cudaGetErrorString(what);
    return true;
  };
  int device = 0;
  int major = 0;
  if (failed(cudaGetDevice(&device)) ||
      failed(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) ||
      major != 9) {
    return nullptr;
  }
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (failed(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                              cudaEnableDefault, &found))) {
    return nullptr;
  }
  if (found != cudaDriverEntryPointSuccess) {
    *error = "the driver has no cuTensorMapEncodeTiled";
    return nullptr;
  }
  for (int token_rows : {8, 16, 32, 64}) {
    for (const auto [blocks, form] : {std::pair(1, StreamForm::kAny),
                                      {2, StreamForm::kAny},
                                      {4, StreamForm::kAny},
                                      {4, StreamForm::kWhole},
                                      {4, StreamForm::kGated}}) {
      const Kernel kernel = Pick(token_rows, blocks, form);
      if (kernel == nullptr) continue;
      if (failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kMaxShared))) {
        return nullptr;
      }
    }
  }
  return std::unique_ptr<StreamLinear>(new StreamLinear(encode));
}

bool StreamLinear::Takes(const LinearArgs& args) {
  return args.type == Type::kBF16 && args.m <= kMaxStreamRows && args.k % 8 == 0 &&
         OnSixteen(args.x) && OnSixteen(args.w) && OnSixteen(args.out) && OnSixteen(args.bias);
}

// A block holds the sums of matching rows of both halves, and of one tile. For fewest tokens the
// separate kernel costs less: the next layer's weights come in meanwhile.
bool StreamLinear::Gates(const LinearArgs& args) {
  const StreamTile tile = StreamTile::ForGated(args.n, args.k);
  return Takes(args) && args.m > 8 && args.out_type == Type::kBF16 && args.bias == nullptr &&
         args.n % 16 == 0 && tile.split == 1 && MmaBlocks(tile.rows) == 4 &&
         CeilDiv(args.n, tile.rows) <= kSms;
}

std::string StreamLinear::Run(const LinearArgs& args, cudaStream_t stream) const {
  const StreamTile tile =
      args.gated ? StreamTile::ForGated(args.n, args.k) : StreamTile::For(args.n, args.k);
  const int token_rows = TokenRows(args.m);
  StreamRing ring;
  if (args.shares) ring.max_bytes -= kSharedRoom;
  ring = ring.For(tile, args.k, token_rows);
  if (args.shares) {
    const int stage_bytes = kSms * BoxesBytes(tile.rows + token_rows, ring.stage_boxes);
    ring.trigger = 1 + SharedAhead(token_rows) / stage_bytes;
    ring.pace = CeilDiv(kSharedPace, BoxesBytes(tile.rows, ring.stage_boxes));
    ring.pace_always = true;
  }
  return Run(args, tile, ring, stream);
}

std::string StreamLinear::Run(const LinearArgs& args, StreamTile tile, StreamRing ring,
                              cudaStream_t stream) const {
  const int token_rows = TokenRows(args.m);
  CUtensorMap w, x;
  const int box_rows = args.gated ? tile.rows / 2 : tile.rows;
  if (!Encode(encode_, args.w, args.n, args.k, box_rows, &w) ||
      !Encode(encode_, args.x, args.m, args.k, token_rows, &x)) {
    return "no tensor map for this shape";
  }
  const Launch launch = Plan(args, tile, ring, token_rows);
  const bool whole = tile.split == 1 && launch.grid == launch.params.tiles;
  const StreamForm form = args.gated ? StreamForm::kGated
                          : whole    ? StreamForm::kWhole
                                     : StreamForm::kAny;
  const cudaError_t error = LaunchDependent(
      Pick(token_rows, MmaBlocks(tile.rows), form), dim3(launch.grid), dim3(kStreamThreads),
      launch.shared_bytes, stream, tile.split, w, x, launch.params);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace rootstock::kernels::cuda
