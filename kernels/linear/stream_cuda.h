// Linear layers for few rows by our own kernel, which streams the weights once.
#pragma once

#include <memory>
#include <string>

#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxStreamRows = 96;

// How the work is cut. This decides the order of sums: it comes from (n, k) alone.
struct StreamTile {
  int rows = 0;   // weight rows of a block's tile, a multiple of 8, ≤ 256
  int split = 1;  // blocks that share a tile's k: 1, 2 or 4 (a cluster)

  static StreamTile For(int n, int k);
  // Of LinearArgs::gated: of an even number of groups of 8 rows; the order of sums is that of For.
  static StreamTile ForGated(int n, int k);
};

// How the rings of copies are used; it does not change results.
struct StreamRing {
  int stage_boxes = 0;       // k of a stage / 64
  int x_boxes = 8;           // of the ring of x, where that leaves two stages of w
  int max_bytes = 232448;    // of shared memory
  int max_stages = 16;       // of w; fewer where shared memory ends
  int pace = 16;             // stages of w under way at most while the ring is filled
  bool pace_always = false;  // and later
  int trigger = 3;           // the next kernel may start this many stages before the last load of w

  // With what suits. token_rows: of a box of x: 8, 16, 32, 64 or 96.
  StreamRing For(StreamTile tile, int k, int token_rows) const;
};

class StreamLinear {
 public:
  // Null and no error before sm_90: the kernel is not for that GPU.
  static std::unique_ptr<StreamLinear> Create(std::string* error);
  ~StreamLinear();

  // bf16, m ≤ kMaxStreamRows, rows of x and w on 16 bytes; above 64 tokens not of blocks that walk
  // wide tiles.
  static bool Takes(const LinearArgs& args);
  // Whether it can run them with `gated`.
  static bool Gates(const LinearArgs& args);

  // Whether it can run them with `shrink`.
  static bool Shrinks(const LinearArgs& args);

  // Takes(args) must hold. A dependent launch (kernels/cuda/pdl.cuh): weights are read before the
  // kernel ahead of it has ended. Empty, or the error.
  std::string Run(const LinearArgs& args, cudaStream_t stream) const;
  std::string Run(const LinearArgs& args, StreamTile tile, StreamRing ring,
                  cudaStream_t stream) const;

 private:
  StreamLinear(void* encode, unsigned* counts) : encode_(encode), counts_(counts) {}

  void* encode_;      // the driver's cuTensorMapEncodeTiled
  unsigned* counts_;  // of StreamShrink, on the device
};

}  // namespace rootstock::kernels::cuda
