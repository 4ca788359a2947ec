// A layer's pages, as the decode kernel reads them.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace rootstock::kernels::cuda {

constexpr int kPieceDims = 64;  // 128 bytes, of which a tensor copy takes rows

struct PageReader {
  // [pages][kv_heads · head_dim / 64][2 · page_tokens, keys then values][64], in boxes of one tile.
  // From sm_90 on.
  CUtensorMap map;
  const __nv_bfloat16* layer;  // of page 0
  size_t page_elements;
  const int32_t* page_ids;
  int page_tokens, kv_heads;
  uint32_t tiles_inverse;  // PageOf's

  // For page_tokens / 16 below 2¹⁵ and rows of fewer than 2¹⁶ tiles.
  static uint32_t Inverse(int page_tiles) { return (uint32_t{1} << 31) / page_tiles + 1; }
  // The page that holds a row's tile.
  __device__ __forceinline__ int PageOf(int tile) const {
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(tile)) * tiles_inverse) >>
                            31);
  }
};

// Where a tile lies. `valid` positions are there: 0 … 16.
struct TilePlace {
  int page = 0, token = 0, kv_head = 0;  // token: the first, in the page
  int valid = 0;
};

}  // namespace rootstock::kernels::cuda
