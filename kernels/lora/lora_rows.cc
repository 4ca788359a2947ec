#include "kernels/lora/lora_rows.h"

#include <algorithm>

namespace rootstock::kernels::cuda {
namespace {

// Cuts rows [begin, end), which share their first adapter, into tiles; returns the next free tile.
LoraTile* Cut(const LoraRow* rows, int begin, int end, int tile_tokens, LoraTile* tile) {
  for (int at = begin; at < end; at += tile_tokens) {
    *tile++ = {rows[at].sites, at, std::min(tile_tokens, end - at)};
  }
  return tile;
}

}  // namespace

void FillLoraRows(const LoraGroupEntry* groups, int num_groups, const int32_t* tokens,
                  const float* scales, int num_tokens, int max_tiles, LoraRow* rows,
                  int32_t* row_of, LoraTile* tiles) {
  const int tile_tokens = LoraTileTokens(num_tokens);
  LoraTile* tile = tiles;
  int count = 0;
  std::fill_n(row_of, num_tokens, -1);
  const auto append = [&](const LoraRow& row) {
    row_of[row.token] = count;
    rows[count++] = row;
  };
  for (int g = 0; g < num_groups; ++g) {
    const int first = count;
    for (int m = groups[g].begin; m < groups[g].begin + groups[g].count; ++m) {
      if (row_of[tokens[m]] < 0) append({groups[g].sites, scales[m], tokens[m], m, -1});
    }
    tile = Cut(rows, first, count, tile_tokens, tile);
  }
  const int first = count;
  for (int t = 0; t < num_tokens; ++t) {
    if (row_of[t] < 0) append({nullptr, 0.0f, t, 0, -1});
  }
  tile = Cut(rows, first, count, tile_tokens, tile);
  std::fill(tile, tiles + max_tiles, LoraTile{});
  for (int g = 0; g < num_groups; ++g) {
    for (int m = groups[g].begin; m < groups[g].begin + groups[g].count; ++m) {
      LoraRow* last = &rows[row_of[tokens[m]]];
      if (last->member == m && last->sites != nullptr) continue;
      while (last->next >= 0) last = &rows[last->next];
      last->next = count;
      rows[count++] = {groups[g].sites, scales[m], tokens[m], m, -1};
    }
  }
}

}  // namespace rootstock::kernels::cuda
