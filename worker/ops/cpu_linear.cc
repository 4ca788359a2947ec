// Linear layers: own kernels for few rows, oneDNN's sgemm for many.
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/linear/linear.h"
#include "worker/ops/cpu_ops.h"

namespace rootstock {
namespace {

constexpr size_t kTileFloats = size_t{1} << 18;  // a widened tile stays in the second cache

void AddBias(const float* bias, int m, int n, float* out) {
  for (int i = 0; i < m; ++i) {
    float* row = out + static_cast<size_t>(i) * n;
    for (int j = 0; j < n; ++j) row[j] += bias[j];
  }
}

}  // namespace

// out [m, n] of rows out_stride apart = x [m, k] · wᵀ, w [n, k].
void CpuOps::Gemm(const float* x, int m, const float* w, int n, int k, int out_stride, float* out) {
  const dnnl_status_t status =
      dnnl_sgemm('N', 'T', m, n, k, 1.0f, x, k, w, k, 0.0f, out, out_stride);
  if (status != dnnl_success && error_.ok()) {
    error_ = MakeError(absl::StatusCode::kInternal, Reason::kInternal, "dnnl_sgemm",
                       absl::StrCat(static_cast<int>(status)), absl::StrCat(m, "x", n, "x", k));
  }
}

void CpuOps::Linear(const void* x, const Matrix& w, const float* bias, void* out) {
  MatMul(static_cast<const float*>(x), num_tokens(), w, bias, static_cast<float*>(out));
}

void CpuOps::Head(const void* x, const Matrix& w, float* logits) {
  MatMul(static_cast<const float*>(x), num_outputs(), w, nullptr, logits);
}

void CpuOps::MatMul(const float* x, int m, const Matrix& w, const float* bias, float* out) {
  if (m == 0) return;
  if (m <= kernels::kMaxPackedRows) {
    kernels::LinearArgs args{x, m, w.data, w.dtype == DType::kBF16, w.rows, w.cols, bias, out};
    if (m <= kernels::kMaxDotRows) return kernels::LinearDot(args, threads_);
    scratch_.resize(std::max(scratch_.size(), size_t{kernels::kMaxPackedRows} * w.cols));
    return kernels::LinearPacked(args, scratch_.data(), threads_);
  }
  if (w.dtype == DType::kF32) {
    Gemm(x, m, static_cast<const float*>(w.data), w.rows, w.cols, w.rows, out);
  } else {
    const uint16_t* weights = static_cast<const uint16_t*>(w.data);
    const int tile = std::max<int>(16, static_cast<int>(kTileFloats / w.cols));
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(tile) * w.cols));
    for (int n = 0; n < w.rows; n += tile) {
      const int rows = std::min(tile, w.rows - n);
      kernels::WidenBf16(weights + static_cast<size_t>(n) * w.cols,
                         static_cast<size_t>(rows) * w.cols, scratch_.data(), threads_);
      Gemm(x, m, scratch_.data(), rows, w.cols, w.rows, out + n);
    }
  }
  if (bias != nullptr) AddBias(bias, m, w.rows, out);
}

}  // namespace rootstock
