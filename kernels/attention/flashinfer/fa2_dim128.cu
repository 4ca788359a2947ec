#include "kernels/attention/flashinfer/fa2.cuh"

namespace rootstock::kernels::cuda {

std::string Fa2Dim128(const FlashCall& call, cudaStream_t stream) { return Fa2<128>(call, stream); }

}  // namespace rootstock::kernels::cuda
