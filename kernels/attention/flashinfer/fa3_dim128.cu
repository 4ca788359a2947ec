#include "kernels/attention/flashinfer/fa3.cuh"

namespace rootstock::kernels::cuda {

std::string Fa3Dim128(const FlashCall& call, cudaStream_t stream) { return Fa3<128>(call, stream); }

}  // namespace rootstock::kernels::cuda
