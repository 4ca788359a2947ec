// What the bench of paged attention runs: steps whose KV lies in a pool of pages, alone or between
// the kernels that attention has beside it in a decoder layer.
#pragma once

#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kBenchLayers = 32;

// Of one case.
struct Measured {
  const char* name = "";
  HeadShape heads;
  int rows = 0, q_len = 1, kv_len = 1024;
  bool ragged = false;  // contexts from 1 to 2 · kv_len - 1
  int page_tokens = 16;
  int pool_gb = 0;      // pages are random ones of a pool of so many GB; 0: no more than are used
  double bound_us = 0;  // of decode in a step; 0: none
};

// Report and end the program.
void Check(cudaError_t error);
void Check(const std::string& error);

// Random numbers within ± spread; not freed before the program ends unless the caller does.
__nv_bfloat16* RandomMemory(size_t elements, float spread = 1.0f);

// Most of the device's memory, random, of which cases take pages. One thread.
class Pool {
 public:
  explicit Pool(size_t bytes) : bytes_(bytes), slab_(RandomMemory(bytes / 2)) {}
  ~Pool() { cudaFree(slab_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  size_t bytes() const { return bytes_; }
  std::byte* slab() const { return reinterpret_cast<std::byte*>(slab_); }

 private:
  size_t bytes_;
  __nv_bfloat16* slab_;
};

// A step of Measured in device memory. One thread.
class BenchStep {
 public:
  BenchStep(const Measured& m, const Pool& pool);
  ~BenchStep();
  BenchStep(const BenchStep&) = delete;
  BenchStep& operator=(const BenchStep&) = delete;

  // A layer's.
  double KvBytes() const;
  double Flops(const Measured& m) const;
  PagedKv LayerKv(int layer) const;

  PagedKv kv;
  size_t qkv_elements = 0;
  __nv_bfloat16* qkv = nullptr;
  __nv_bfloat16* out = nullptr;
  const int32_t* positions = nullptr;     // [rows]: of decode
  const uint32_t* token_pages = nullptr;  // [rows]: the page of that position
  int max_positions = 0;
  AttentionBatch batch;
  AttentionShapes shapes;

 private:
  template <typename T>
  T* Upload(const std::vector<T>& from);

  std::vector<int32_t> q_begin_, kv_len_, page_begin_, page_ids_;
  size_t layer_bytes_ = 0;
  std::vector<void*> owned_;
};

// The rest of a decoder layer around attention: the projection to q, k and v, rotation and KV write
// before it, the output projection after it, as a decode step has them. One stream at a time.
class Neighbours {
 public:
  explicit Neighbours(const BenchStep& step);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  void Before(int layer, cudaStream_t stream);
  void After(int layer, cudaStream_t stream);

 private:
  __nv_bfloat16* Owned(size_t elements, float spread);

  const BenchStep& step_;
  std::unique_ptr<Linear> linear_;
  std::vector<const __nv_bfloat16*> qkv_weights_, o_weights_;  // copies, more than the L2 holds
  const __nv_bfloat16* x_ = nullptr;                           // [rows, width]
  __nv_bfloat16* y_ = nullptr;                                 // [rows, width]
  const float* cos_ = nullptr;                                 // [positions, head_dim / 2]
  std::vector<void*> owned_;
};

}  // namespace rootstock::kernels::cuda
