#include "common/lora/receipt.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/half.h"

namespace rootstock {
namespace {

const char* FileDtypeName(DType t) {
  return t == DType::kF32 ? "F32" : t == DType::kF16 ? "F16" : "BF16";
}

std::vector<float> ToFloats(const std::vector<uint8_t>& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / DTypeBytes(dtype));
  for (size_t i = 0; i < out.size(); ++i) out[i] = LoadFloat(bytes.data(), dtype, i);
  return out;
}

double DotDouble(const float* x, const float* y, int n) {
  double sum[4] = {};  // four chains, so that one addition need not wait for the last
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int k = 0; k < 4; ++k) sum[k] += static_cast<double>(x[i + k]) * y[i + k];
  }
  for (; i < n; ++i) sum[0] += static_cast<double>(x[i]) * y[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Largest |bf16(x) - x| / |x|.
double MaxRounding(const std::vector<uint8_t>& bytes, DType dtype) {
  if (dtype == DType::kBF16) return 0.0;
  double most = 0.0;
  for (size_t i = 0; i < bytes.size() / DTypeBytes(dtype); ++i) {
    const float x = LoadFloat(bytes.data(), dtype, i);
    if (x == 0.0f) continue;
    const double rounded = BF16ToFloat(FloatToBF16(x));
    most = std::max(most, std::abs((rounded - x) / x));
  }
  return most;
}

// The last part of a path or hub name, without case: what people compare.
std::string BaseName(const std::string& name) {
  std::string s = absl::AsciiStrToLower(name);
  while (!s.empty() && s.back() == '/') s.pop_back();
  return s.substr(s.rfind('/') == std::string::npos ? 0 : s.rfind('/') + 1);
}

}  // namespace

double DeltaFrobenius(const LoraWeights& weights, int lora_rank, int in, int out, float scale) {
  const std::vector<float> a = ToFloats(weights.a, weights.a_dtype);
  const std::vector<float> b = ToFloats(weights.b, weights.b_dtype);
  std::vector<float> bt(b.size());  // [lora_rank, out]: rows are contiguous, as A's are
  for (int o = 0; o < out; ++o) {
    for (int r = 0; r < lora_rank; ++r)
      bt[size_t{1} * r * out + o] = b[size_t{1} * o * lora_rank + r];
  }
  double sum = 0.0;
  for (int i = 0; i < lora_rank; ++i) {
    for (int j = 0; j <= i; ++j) {
      const double g = DotDouble(&a[size_t{1} * i * in], &a[size_t{1} * j * in], in);
      const double h = DotDouble(&bt[size_t{1} * i * out], &bt[size_t{1} * j * out], out);
      sum += (i == j ? 1.0 : 2.0) * g * h;
    }
  }
  return std::abs(static_cast<double>(scale)) * std::sqrt(std::max(sum, 0.0));
}

Receipt MakeReceipt(const PeftAdapter& adapter, const ModelSpec& model, const std::string& blob,
                    const std::string& served_model_name) {
  Receipt out;
  out.digest = Sha256Of(blob);
  out.blob_bytes = blob.size();
  out.base_model_name = adapter.base_model_name;
  out.harmless_fields = adapter.harmless_fields;
  if (!adapter.base_model_name.empty() &&
      BaseName(adapter.base_model_name) != BaseName(served_model_name)) {
    out.base_name_warning =
        absl::StrCat("trained on ", adapter.base_model_name, ", served is ", served_model_name);
  }
  for (size_t i = 0; i < adapter.spec.modules.size(); ++i) {
    const LoraModule& m = adapter.spec.modules[i];
    const LoraWeights& w = adapter.weights[i];
    for (const DType t : {w.a_dtype, w.b_dtype}) {
      if (out.file_dtype.empty()) out.file_dtype = FileDtypeName(t);
      if (out.file_dtype != FileDtypeName(t)) out.file_dtype = "mixed";
    }
    out.max_rounding =
        std::max({out.max_rounding, MaxRounding(w.a, w.a_dtype), MaxRounding(w.b, w.b_dtype)});
    out.modules.push_back({m.layer, m.module, m.lora_rank, m.scale,
                           DeltaFrobenius(w, m.lora_rank, model.in_features(m.module),
                                          model.out_features(m.module), m.scale)});
  }
  return out;
}

}  // namespace rootstock
