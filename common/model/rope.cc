#include "common/model/rope.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "common/base/status.h"
#include "common/model/json_fields.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

constexpr double kMaxTheta = 1e12;

absl::StatusOr<RopeSpec::Kind> ParseKind(const Json& rope, const std::string& field) {
  const JsonFields f(rope);
  const Json* kind = f.Find("rope_type");
  if (const Json* old = f.Find("type"); old != nullptr) {
    if (kind != nullptr && *kind != *old) {
      return JsonFields::Bad(field, rope, "type and rope_type differ");
    }
    kind = old;
  }
  if (kind == nullptr || *kind == "default") return RopeSpec::Kind::kDefault;
  if (*kind == "llama3") return RopeSpec::Kind::kLlama3;
  if (*kind == "linear") return RopeSpec::Kind::kLinear;
  return JsonFields::Unsupported(field + ".rope_type", *kind,
                                 "served are default, linear and llama3");
}

// Parameters that the kind's formula reads; others are refused unless empty.
absl::Status CheckKeys(const Json& rope, const std::string& field, RopeSpec::Kind kind) {
  for (const auto& [name, value] : rope.items()) {
    if (name == "rope_type" || name == "type" || name == "rope_theta") continue;
    if (value.is_null() || (value.is_structured() && value.empty())) continue;
    if (name == "partial_rotary_factor" && value == 1.0) continue;
    // Carried along by other types' defaults; no formula served here but llama3's reads it.
    if (name == "original_max_position_embeddings") continue;
    if (name == "factor" && kind != RopeSpec::Kind::kDefault) continue;
    if ((name == "low_freq_factor" || name == "high_freq_factor") &&
        kind == RopeSpec::Kind::kLlama3) {
      continue;
    }
    return JsonFields::Unsupported(field + "." + name, value, "not served with this rope_type");
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const Json& rope, const std::string& field, RopeSpec& out) {
  const JsonFields f(rope);
  const auto required = [&](const char* name, double low, double high) -> absl::StatusOr<double> {
    ASSIGN_OR_RETURN(const auto v, f.Number(name, low, high));
    if (!v) return InvalidField(Reason::kModelInvalid, field + "." + name, "", "is required");
    return *v;
  };
  if (out.kind == RopeSpec::Kind::kDefault) return absl::OkStatus();
  ASSIGN_OR_RETURN(out.factor, required("factor", 1.0, 1e6));
  if (out.kind == RopeSpec::Kind::kLinear) return absl::OkStatus();
  ASSIGN_OR_RETURN(out.low_freq_factor, required("low_freq_factor", 1e-6, 1e6));
  ASSIGN_OR_RETURN(out.high_freq_factor, required("high_freq_factor", 1e-6, 1e6));
  if (out.high_freq_factor <= out.low_freq_factor) {
    return JsonFields::Bad(field, rope, "high_freq_factor must exceed low_freq_factor");
  }
  ASSIGN_OR_RETURN(out.original_max_position,
                   f.RequiredInt("original_max_position_embeddings", 1, 1 << 30));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RopeSpec> ParseRope(const Json& config) {
  const JsonFields f(config);
  const Json* scaling = f.Find("rope_scaling");        // transformers 4
  const Json* parameters = f.Find("rope_parameters");  // transformers 5
  RopeSpec out;
  ASSIGN_OR_RETURN(const auto theta, f.Number("rope_theta", 1.0, kMaxTheta));
  out.theta = theta.value_or(10000.0);
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return JsonFields::Bad("rope_scaling", *scaling, "differs from rope_parameters");
  }
  const Json* rope = parameters != nullptr ? parameters : scaling;
  if (rope == nullptr) return out;
  const std::string field = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (!rope->is_object()) return JsonFields::Bad(field, *rope, "must be an object");
  ASSIGN_OR_RETURN(out.kind, ParseKind(*rope, field));
  RETURN_IF_ERROR(CheckKeys(*rope, field, out.kind));
  ASSIGN_OR_RETURN(const auto inner, JsonFields(*rope).Number("rope_theta", 1.0, kMaxTheta));
  if (inner && theta && *inner != *theta) {
    return JsonFields::Bad(field, *rope, "its rope_theta differs from the top level's");
  }
  if (inner) out.theta = *inner;
  RETURN_IF_ERROR(ReadNumbers(*rope, field, out));
  return out;
}

// f_i = theta^(-2i/d). linear: f/factor. llama3, with wavelength w = 2π/f over the original length
// L: w > L/low: f/factor; w < L/high: f; between: (1-s)·f/factor + s·f, s = (L/w - low)/(high -
// low).
std::vector<float> ModelSpec::RopeInverseFrequencies() const {
  std::vector<float> out(head_dim / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    double f = std::pow(rope.theta, -2.0 * static_cast<double>(i) / head_dim);
    if (rope.kind == RopeSpec::Kind::kLinear) f /= rope.factor;
    if (rope.kind == RopeSpec::Kind::kLlama3) {
      const double turns = rope.original_max_position * f / (2.0 * std::numbers::pi);  // L / w
      if (turns < rope.low_freq_factor) {
        f /= rope.factor;
      } else if (turns <= rope.high_freq_factor) {
        const double s =
            (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        f = (1.0 - s) * f / rope.factor + s * f;
      }
    }
    out[i] = static_cast<float>(f);
  }
  return out;
}

}  // namespace rootstock
