// Typed reading of one JSON object's fields, with errors that name field and value.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {

// A view of an object; absent and null are one. Not owning; thread-safe.
class JsonFields {
 public:
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json* Find(const std::string& name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  // A whole number in [low, high]; nothing when absent.
  absl::StatusOr<std::optional<int>> Int(const std::string& name, int low, int high) const {
    const nlohmann::json* v = Find(name);
    if (v == nullptr) return std::optional<int>();
    const bool fits = v->is_number_unsigned() ? v->get<uint64_t>() <= uint64_t{INT32_MAX}
                                              : v->is_number_integer();
    if (!fits || v->get<int64_t>() < low || v->get<int64_t>() > high) {
      return Bad(name, *v, absl::StrCat("must be a whole number from ", low, " to ", high));
    }
    return std::optional<int>(v->get<int>());
  }

  absl::StatusOr<int> RequiredInt(const std::string& name, int low, int high) const {
    ASSIGN_OR_RETURN(const std::optional<int> v, Int(name, low, high));
    if (!v) return InvalidField(Reason::kModelInvalid, name, "", "is required");
    return *v;
  }

  // A number in [low, high]; nothing when absent.
  absl::StatusOr<std::optional<double>> Number(const std::string& name, double low,
                                               double high) const {
    const nlohmann::json* v = Find(name);
    if (v == nullptr) return std::optional<double>();
    if (!v->is_number() || !(v->get<double>() >= low) || !(v->get<double>() <= high)) {
      return Bad(name, *v, absl::StrCat("must be a number from ", low, " to ", high));
    }
    return std::optional<double>(v->get<double>());
  }

  absl::StatusOr<std::optional<bool>> Bool(const std::string& name) const {
    const nlohmann::json* v = Find(name);
    if (v == nullptr) return std::optional<bool>();
    if (!v->is_boolean()) return Bad(name, *v, "must be true or false");
    return std::optional<bool>(v->get<bool>());
  }

  static absl::Status Bad(const std::string& name, const nlohmann::json& v,
                          const std::string& text) {
    return InvalidField(Reason::kModelInvalid, name, v.dump(), text);
  }

 private:
  const nlohmann::json& object_;
};

}  // namespace rootstock
