#include "common/model/json_fields.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {

using Json = nlohmann::json;

const Json* JsonFields::Find(const std::string& name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::optional<int>> JsonFields::Int(const std::string& name, int low,
                                                   int high) const {
  const Json* v = Find(name);
  if (v == nullptr) return std::optional<int>();
  const bool fits =
      v->is_number_unsigned() ? v->get<uint64_t>() <= uint64_t{INT32_MAX} : v->is_number_integer();
  if (!fits || v->get<int64_t>() < low || v->get<int64_t>() > high) {
    return Bad(name, *v, absl::StrCat("must be a whole number from ", low, " to ", high));
  }
  return std::optional<int>(v->get<int>());
}

absl::StatusOr<int> JsonFields::RequiredInt(const std::string& name, int low, int high) const {
  ASSIGN_OR_RETURN(const std::optional<int> v, Int(name, low, high));
  if (!v) return InvalidField(Reason::kModelInvalid, name, "", "is required");
  return *v;
}

absl::StatusOr<std::optional<double>> JsonFields::Number(const std::string& name, double low,
                                                         double high) const {
  const Json* v = Find(name);
  if (v == nullptr) return std::optional<double>();
  if (!v->is_number() || !(v->get<double>() >= low) || !(v->get<double>() <= high)) {
    return Bad(name, *v, absl::StrCat("must be a number from ", low, " to ", high));
  }
  return std::optional<double>(v->get<double>());
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const std::string& name) const {
  const Json* v = Find(name);
  if (v == nullptr) return std::optional<bool>();
  if (!v->is_boolean()) return Bad(name, *v, "must be true or false");
  return std::optional<bool>(v->get<bool>());
}

absl::Status JsonFields::Bad(const std::string& name, const Json& v, const std::string& text) {
  return InvalidField(Reason::kModelInvalid, name, v.dump(), text);
}

absl::Status JsonFields::Unsupported(const std::string& name, const Json& v,
                                     const std::string& text) {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupportedModel, name, v.dump(),
                   text);
}

}  // namespace rootstock
