// Typed reading of one JSON object's fields, with errors that name field and value.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

// A view of a JSON object (anything else has no fields); absent and null are one. Errors are
// kInvalidArgument/model_invalid. Not owning; thread-safe.
class JsonFields {
 public:
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  // Nothing when absent or null.
  const nlohmann::json* Find(const std::string& name) const;
  // A whole number in [low, high]; nothing when absent.
  absl::StatusOr<std::optional<int>> Int(const std::string& name, int low, int high) const;
  absl::StatusOr<int> RequiredInt(const std::string& name, int low, int high) const;
  // A number in [low, high]; nothing when absent.
  absl::StatusOr<std::optional<double>> Number(const std::string& name, double low,
                                               double high) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& name) const;

  static absl::Status Bad(const std::string& name, const nlohmann::json& v,
                          const std::string& text);
  // kUnimplemented/unsupported_model: rightly written, but not served.
  static absl::Status Unsupported(const std::string& name, const nlohmann::json& v,
                                  const std::string& text);

 private:
  const nlohmann::json& object_;
};

}  // namespace rootstock
