// What a FlashInfer kernel is called with; between prefill.cc and the files that include
// FlashInfer, one for each (kernel, head_dim).
#pragma once

#include <string>

#include "kernels/attention/attention_cuda.h"

namespace rootstock::kernels::cuda {

// Work of a step in device memory. FA2: tiles of queries, by row. FA3: the same for each query
// head, in one list for each block.
struct FlashWork {
  int count = 0;
  int32_t* row = nullptr;            // [count]
  int32_t* tile = nullptr;           // [count]: of the row's queries
  int32_t* q_begin = nullptr;        // [count], FA3, as the next three
  int32_t* q_len = nullptr;          // [count]
  int32_t* page_begin = nullptr;     // [count]
  int32_t* kv_len = nullptr;         // [count]
  int32_t* head = nullptr;           // [count]
  int32_t* block_begin = nullptr;    // [blocks + 1], FA3: block i has work block_begin[i] …
  int32_t* zeros = nullptr;          // [count], FA2, as the next
  int32_t* last_page_len = nullptr;  // [rows]: tokens in a row's last page
};

struct FlashCall {
  AttentionRows rows;  // on the device
  int num_rows = 0;
  int num_tokens = 0;
  HeadShape heads;
  PagedKv kv;
  const void* qkv = nullptr;
  void* out = nullptr;
  FlashWork work;
};

// Queries of a tile: pairs (token, head of the group) for FA2, tokens for FA3.
constexpr int kFa2Tile = 128;
constexpr int kFa2SharedBytes = 160 * 1024;  // of a multiprocessor
constexpr int Fa3Tile(int head_dim) { return head_dim == 64 ? 192 : 128; }

// Empty on success.
std::string Fa2Dim64(const FlashCall& call, cudaStream_t stream);
std::string Fa2Dim128(const FlashCall& call, cudaStream_t stream);
std::string Fa3Dim64(const FlashCall& call, cudaStream_t stream);
std::string Fa3Dim128(const FlashCall& call, cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
