// A value of a JSON file that knows where it stands, so that errors can name it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rootstock {

// A view: the document must outlive it. Used on one thread while loading.
class JsonNode {
 public:
  // `path` begins with the file's name.
  JsonNode(const nlohmann::json& value, std::string path, int depth = 0);

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool IsNull() const;
  bool IsObject() const;

  // INVALID_ARGUMENT (model_invalid) and UNIMPLEMENTED (unsupported_model) at this place.
  absl::Status Invalid(const std::string& text) const;
  absl::Status Unsupported(const std::string& value, const std::string& text) const;

  // A member of this object; null where it is missing.
  absl::StatusOr<JsonNode> Member(const std::string& key) const;
  // Refused deep inside the document: loaders call themselves for the parts of sequences.
  absl::StatusOr<std::vector<JsonNode>> Elements() const;
  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<int64_t> AsInteger(int64_t low, int64_t high) const;

  // Members by type; the default is for missing or null ones, and without one they are errors.
  absl::StatusOr<std::string> String(const std::string& key,
                                     std::optional<std::string> fallback = std::nullopt) const;
  absl::StatusOr<bool> Bool(const std::string& key,
                            std::optional<bool> fallback = std::nullopt) const;
  absl::StatusOr<int64_t> Integer(const std::string& key, int64_t low, int64_t high) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  int depth_;  // members and elements between the document and this one
};

}  // namespace rootstock
