#include <algorithm>

#include "kernels/linear/stream_plan.h"
#include "kernels/lora/lora_shrink_items.cuh"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kMaxTileRows = 248;
constexpr int kBarrierBytes = 4 * 8 * kMaxStages + 16;

int Boxes(int k) { return CeilDiv(k, kBoxK); }

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

}  // namespace

// Shared memory: ring of w | ring of x | over-read | sums, unless they lie over the ring | the
// other ranks' sums | barriers | a shrink's sums | what LoRA adds.
StreamLaunch PlanStream(const LinearArgs& a, StreamTile tile, StreamRing ring, int token_rows) {
  StreamLaunch launch;
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
  const int sets = a.shrink == nullptr ? 0 : ExpandsRows(a) ? kGatedSets : 1;
  const int shrink = sets * static_cast<int>(sizeof(DecodeSums));
  const int delta = a.shrink != nullptr && a.gated ? token_rows * 2 * DeltaPitch(tile.rows / 2) *
                                                         static_cast<int>(sizeof(float))
                                                   : 0;
  const int reserved = kBarrierBytes + parts + shrink + delta + (over_ring ? 0 : sums);
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
  p.pace = std::min(ring.pace, p.w_stages);
  p.pace_always = ring.pace_always;
  p.trigger = ring.trigger + std::max(0, p.w_stages - p.x_stages);
  const int ring_end = BoxesBytes(tile.rows, p.w_stages * p.stage_boxes) +
                       BoxesBytes(token_rows, p.x_stages * p.stage_boxes) +
                       over_read(p.stage_boxes);
  p.sums_offset = over_ring ? 0 : RoundUp(ring_end, 16);
  p.parts_offset =
      RoundUp(over_ring ? std::max(ring_end, blocks * sums) : p.sums_offset + sums, 16);
  p.barrier_offset = p.parts_offset + parts;
  p.shrink_offset = p.barrier_offset + kBarrierBytes;
  p.delta_offset = p.shrink_offset + shrink;
  launch.shared_bytes = p.delta_offset + delta;
  launch.whole = IsWhole(tile, a.n);
  return launch;
}

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
  ring.x_boxes = token_rows < 32 ? 16 : tile.rows > 128 ? 6 : token_rows > 64 ? 8 : 10;
  if (k / tile.split <= 4096) {
    ring.pace = CeilDiv(kPacedBytes, BoxesBytes(tile.rows, ring.stage_boxes));
  }
  if (token_rows < 64) ring.trigger = 6;
  return ring;
}

}  // namespace rootstock::kernels::cuda
