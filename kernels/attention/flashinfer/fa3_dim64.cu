#include "kernels/attention/flashinfer/fa3.cuh"

namespace rootstock::kernels::cuda {

std::string Fa3Dim64(const FlashCall& call, cudaStream_t stream) { return Fa3<64>(call, stream); }

}  // namespace rootstock::kernels::cuda
