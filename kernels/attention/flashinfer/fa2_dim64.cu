#include "kernels/attention/flashinfer/fa2.cuh"

namespace rootstock::kernels::cuda {

std::string Fa2Dim64(const FlashCall& call, cudaStream_t stream) { return Fa2<64>(call, stream); }

}  // namespace rootstock::kernels::cuda
