// Tensors and references for tests and benches of the linear layers on the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

// The i-th value of stream `seed` in [-1, 1), exact in `type` and the same on host and GPU. The
// f32 ones fill all 24 bits (TF32 shows); sums of products of either round.
float TestValue(Type type, uint64_t i, uint32_t seed);
// Fills device memory with `scale` · TestValue(type, i, seed), rounded to `type`.
void FillRandom(Type type, void* out, size_t n, uint32_t seed, float scale, cudaStream_t stream);
// Aborts with a message.
void CheckCuda(cudaError_t error, const char* what);

// Copies `bytes`, a multiple of 16, by a kernel that lets the one launched behind it start at once
// and writes nothing for 50 µs.
cudaError_t CopyLate(const void* from, void* to, size_t bytes, cudaStream_t stream);

// Device memory; every byte is 0xff (NaN) at first.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return data_; }
  void Poison();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What a linear layer reads and writes, on the device: random x, w and bias, poisoned out.
struct TestCase {
  TestCase(Type type, Type out_type, int m, int n, int k, bool biased);

  Buffer x, w, bias, out;
  LinearArgs args;
};

// args.out on the host, widened to f32.
std::vector<float> ReadOut(const LinearArgs& args);
// ‖out − want‖ / ‖want‖ over `samples` of a TestCase's outputs (or all), want being sums in f64.
double RelativeError(const LinearArgs& args, int samples);

struct Difference {
  double relative = 0;  // ‖a − b‖ / ‖b‖; NaN where a value is
  double largest = 0;   // of |a − b|
};
// Of two device tensors of n values.
Difference Compare(Type a_type, const void* a, Type b_type, const void* b, size_t n);

}  // namespace rootstock::kernels::cuda
