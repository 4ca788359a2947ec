#include "tests/perf/gpu_ceilings.h"

#include <cuda_runtime_api.h>

#include "kernels/linear/cuda_bench.h"
#include "kernels/linear/lt_matmul.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

// Negative, with a message on stderr, where it fails.
double GemmMicroseconds(cuda::LtMatmul& lt, int size) {
  constexpr int kRepeats = 3;
  const cuda::TestCase c(cuda::Type::kBF16, cuda::Type::kBF16, size, size, size, false);
  return cuda::GraphTime([&](cudaStream_t stream) {
           std::string error;
           for (int i = 0; i < kRepeats && error.empty(); ++i) error = lt.Run(c.args, stream);
           return error;
         }) /
         kRepeats;
}

}  // namespace

std::string MeasureCeilings(int gpu, Ceilings* out) {
  if (const cudaError_t error = cudaSetDevice(gpu); error != cudaSuccess) {
    return std::string("measures on a GPU, and there is none that can be used: ") +
           cudaGetErrorString(error) + "; nvidia-smi shows the driver and what it has";
  }
  std::string error;
  const std::unique_ptr<cuda::LtMatmul> lt = cuda::LtMatmul::Create(&error);
  if (lt == nullptr) return error;
  constexpr double kSize = 8192;
  out->read_bytes_per_us = cuda::ReadBandwidth() / 1e6;
  const double us = GemmMicroseconds(*lt, static_cast<int>(kSize));
  out->flops_per_us = 2 * kSize * kSize * kSize / us;
  return us > 0 ? "" : "the product of 8192³ failed";
}

}  // namespace rootstock
