#include "kernels/attention/flashinfer/plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace rootstock::kernels::cuda {

std::vector<QueryTile> QueryTiles(const AttentionBatch& batch, int queries_a_token, int tile) {
  std::vector<QueryTile> tiles;
  for (int r = 0; r < batch.num_rows; ++r) {
    const int q_len = batch.host.q_begin[r + 1] - batch.host.q_begin[r];
    const int kv_len = batch.host.kv_len[r];
    if (q_len <= 1 || kv_len == 0) continue;
    const int queries = q_len * queries_a_token;
    for (int t = 0; t * tile < queries; ++t) {
      const int end = std::min(((t + 1) * tile + queries_a_token - 1) / queries_a_token, q_len);
      // Each tile costs about as much as two tiles of keys beside its keys.
      tiles.push_back({r, t, 2 * tile + kv_len - q_len + end});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const QueryTile& a, const QueryTile& b) { return a.cost > b.cost; });
  return tiles;
}

std::vector<int> Assign(const std::vector<QueryTile>& tiles, int heads, int blocks) {
  using Load = std::pair<int64_t, int>;  // cost so far, block
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int b = 0; b < blocks; ++b) loads.push({0, b});
  std::vector<int> assigned;
  assigned.reserve(tiles.size() * heads);
  for (const QueryTile& tile : tiles) {
    for (int h = 0; h < heads; ++h) {
      const auto [cost, block] = loads.top();
      loads.pop();
      loads.push({cost + tile.cost, block});
      assigned.push_back(block);
    }
  }
  return assigned;
}

}  // namespace rootstock::kernels::cuda
