// Shares the queries of a step among the blocks of a FlashInfer kernel. Plain C++.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

// A tile of a row's queries.
struct QueryTile {
  int row = 0;
  int tile = 0;
  int cost = 0;  // in keys
};

// The tiles of rows with several queries, most expensive first. Rows count `queries_a_token` times
// their tokens in tiles of `tile`.
std::vector<QueryTile> QueryTiles(const AttentionBatch& batch, int queries_a_token, int tile);

// For each of tiles × heads (heads fastest) a block, such that the blocks have about equal costs:
// each goes to the block with least so far.
std::vector<int> Assign(const std::vector<QueryTile>& tiles, int heads, int blocks);

}  // namespace rootstock::kernels::cuda
