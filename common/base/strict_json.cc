#include "common/base/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

// nlohmann's id of a number that no double holds.
constexpr int kNumberOverflow = 406;

// Counts depth and remembers the keys of every open object. One call only.
class Checker : public nlohmann::json_sax<Json> {
 public:
  explicit Checker(const StrictJsonLimits& limits)
      : max_depth_(limits.max_depth), max_keys_(limits.max_keys) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& k) override {
    keys_.back() = k;
    if (!open_.back().insert(k).second) {
      duplicate_ = k;
      return false;
    }
    if (open_.back().size() <= max_keys_) return true;
    error_ = absl::StrCat("has an object of more than ", max_keys_, " keys");
    return false;
  }
  bool parse_error(std::size_t at, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOverflow) {
      field_ = Path();
      value_ = token;
      error_ = "is too large a number";
    } else {
      error_ = absl::StrCat("is not valid JSON (at byte ", at, ")");
    }
    return false;
  }

  const std::string& error() const { return error_; }
  // What the error is about; empty for the file.
  const std::string& field() const { return field_; }
  const std::string& value() const { return value_; }
  const std::string& duplicate() const { return duplicate_; }

 private:
  bool Open() {
    open_.emplace_back();
    keys_.emplace_back();
    if (static_cast<int>(open_.size()) <= max_depth_) return true;
    error_ = absl::StrCat("is nested deeper than ", max_depth_);
    return false;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  // "alpha_pattern[q_proj]"
  std::string Path() const {
    std::string path;
    for (const std::string& key : keys_) {
      if (!key.empty()) path += path.empty() ? key : absl::StrCat("[", key, "]");
    }
    return path;
  }

  const int max_depth_;
  const size_t max_keys_;
  std::vector<std::set<std::string>> open_;
  std::vector<std::string> keys_;  // the last one of each of open_; of arrays none
  std::string error_, field_, value_, duplicate_;
};

absl::Status Check(const std::string& text, const std::string& name,
                   const StrictJsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return InvalidField(
        limits.invalid, name, "",
        absl::StrCat("has ", text.size(), " bytes, at most ", limits.max_bytes, " are read"));
  }
  Checker checker(limits);
  if (Json::sax_parse(text, &checker)) return absl::OkStatus();
  if (!checker.error().empty()) {
    return InvalidField(limits.invalid, checker.field().empty() ? name : checker.field(),
                        checker.value(), checker.error());
  }
  return InvalidField(limits.duplicate, name, checker.duplicate(), "key is given twice");
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(const std::string& text, const std::string& name,
                                     const StrictJsonLimits& limits) {
  RETURN_IF_ERROR(Check(text, name, limits));
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(const std::string& text,
                                                              const std::string& name,
                                                              const StrictJsonLimits& limits) {
  RETURN_IF_ERROR(Check(text, name, limits));
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace rootstock
