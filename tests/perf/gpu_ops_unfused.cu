#include <cuda_bf16.h>

#include "tests/perf/gpu_ops_unfused.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// Token t runs with adapter t mod `adapters`.
__global__ void KeepOwn(__nv_bfloat16* v, int columns, int adapters, int lora_rank) {
  const int token = blockIdx.x;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    if (c / lora_rank % adapters == token % adapters) continue;
    v[static_cast<size_t>(token) * columns + c] = __float2bfloat16(0.0f);
  }
}

#define RETURN_LT_ERROR(call)                                                        \
  if (const cublasStatus_t lt_status = (call); lt_status != CUBLAS_STATUS_SUCCESS) { \
    return std::string(#call ": ") + cublasLtGetStatusString(lt_status);             \
  }

}  // namespace

// y [tokens, features], a part of a wider matrix, += v [tokens, k] · bᵀ.
struct UnfusedLora::Expand {
  ~Expand() {
    for (const cublasLtMatrixLayout_t layout : {b, v, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (op != nullptr) cublasLtMatmulDescDestroy(op);
  }
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t b = nullptr, v = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algo = {};
};

UnfusedLora::UnfusedLora(const cuda::LoraTargets& targets, int tokens, int adapters, int lora_rank,
                         const std::byte* weights, size_t weight_bytes, cuda::LtMatmul* lt)
    : targets_(targets),
      tokens_(tokens),
      adapters_(adapters),
      lora_rank_(lora_rank),
      weights_(weights),
      weight_bytes_(weight_bytes),
      lt_(lt),
      columns_(targets.count * adapters * lora_rank),
      width_(targets.column[targets.count - 1] + targets.features[targets.count - 1]) {
  layer_bytes_ = size_t{2} * columns_ * targets.in + size_t{2} * adapters * lora_rank * width_;
  const auto make = [](size_t count, float scale) {
    auto out = std::make_unique<cuda::Buffer>(count * 2);
    cuda::FillRandom(cuda::Type::kBF16, out->get(), count, 3, scale, nullptr);
    return out;
  };
  x_ = make(static_cast<size_t>(tokens) * targets.in, 1.0f);
  v_ = make(static_cast<size_t>(tokens) * columns_, 1.0f);
  y_ = make(static_cast<size_t>(tokens) * width_, 1.0f);
  workspace_ = std::make_unique<cuda::Buffer>(kWorkspaceBytes);
  if (cublasLtCreate(&handle_) != CUBLAS_STATUS_SUCCESS) error_ = "cuBLASLt can't be set up";
  for (int t = 0; t < targets.count && error_.empty(); ++t) error_ = MakeExpand(t);
}

UnfusedLora::~UnfusedLora() {
  for (std::unique_ptr<Expand>& expand : expands_) expand.reset();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

// Column-major: y is features × tokens, v is k × tokens, b k × features.
std::string UnfusedLora::MakeExpand(int target) {
  expands_[target] = std::make_unique<Expand>();
  Expand& e = *expands_[target];
  const uint64_t k = static_cast<uint64_t>(adapters_) * lora_rank_;
  const uint64_t features = targets_.features[target];
  RETURN_LT_ERROR(cublasLtMatmulDescCreate(&e.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  RETURN_LT_ERROR(cublasLtMatmulDescSetAttribute(e.op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                 sizeof(transpose)));
  RETURN_LT_ERROR(cublasLtMatrixLayoutCreate(&e.b, CUDA_R_16BF, k, features, k));
  RETURN_LT_ERROR(cublasLtMatrixLayoutCreate(&e.v, CUDA_R_16BF, k, tokens_, columns_));
  RETURN_LT_ERROR(cublasLtMatrixLayoutCreate(&e.y, CUDA_R_16BF, features, tokens_, width_));
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_LT_ERROR(cublasLtMatmulPreferenceCreate(&preference));
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &kWorkspaceBytes, sizeof(kWorkspaceBytes));
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, e.op, e.b, e.v, e.y, e.y,
                                                               preference, 1, &best, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  RETURN_LT_ERROR(status);
  if (found == 0) return "cuBLASLt has no algorithm for the expand";
  e.algo = best.algo;
  return "";
}

// Rotates: neighbouring layers share nothing while the memory holds several.
const std::byte* UnfusedLora::Weights(int layer, size_t offset) const {
  const size_t room = weight_bytes_ / layer_bytes_;
  return weights_ + (room == 0 ? 0 : layer % room * layer_bytes_) + offset;
}

std::string UnfusedLora::Run(int layer, cudaStream_t stream) {
  if (!error_.empty()) return error_;
  cuda::LinearArgs shrink;
  shrink.x = x_->get();
  shrink.m = tokens_;
  shrink.w = Weights(layer, 0);
  shrink.n = columns_;
  shrink.k = targets_.in;
  shrink.out = v_->get();
  if (std::string error = lt_->Run(shrink, stream); !error.empty()) return error;
  auto* const v = static_cast<__nv_bfloat16*>(v_->get());
  auto* const y = static_cast<__nv_bfloat16*>(y_->get());
  if (adapters_ > 1) KeepOwn<<<tokens_, 256, 0, stream>>>(v, columns_, adapters_, lora_rank_);
  const float one = 1.0f;
  size_t offset = size_t{2} * columns_ * targets_.in;
  for (int t = 0; t < targets_.count; ++t) {
    const Expand& e = *expands_[t];
    __nv_bfloat16* const out = y + targets_.column[t];
    RETURN_LT_ERROR(cublasLtMatmul(handle_, e.op, &one, Weights(layer, offset), e.b,
                                   v + t * adapters_ * lora_rank_, e.v, &one, out, e.y, out, e.y,
                                   &e.algo, workspace_->get(), kWorkspaceBytes, stream));
    offset += size_t{2} * adapters_ * lora_rank_ * targets_.features[t];
  }
  return "";
}

}  // namespace rootstock
