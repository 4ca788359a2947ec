#include "common/safetensors/header_sax.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDimensions = 8;

// {"NAME": {"dtype": S, "shape": [N…], "data_offsets": [B, E]}, …, "__metadata__": {S: S, …}}.
// Any other shape of JSON ends the parse. One call only.
class HeaderSax : public nlohmann::json_sax<Json> {
 public:
  HeaderSax(const std::string& file, size_t max_tensors, SafetensorsHeader& out)
      : file_(file), max_tensors_(max_tensors), out_(out) {}

  bool null() override { return Fail("null is out of place"); }
  bool boolean(bool) override { return Fail("a boolean is out of place"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Fail("not a whole number"); }
  bool binary(binary_t&) override { return Fail("binary data"); }

  bool number_unsigned(number_unsigned_t v) override {
    if (state_ == State::kShape && tensor().shape.size() < kMaxDimensions &&
        v <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      tensor().shape.push_back(static_cast<int64_t>(v));
      return true;
    }
    if (state_ == State::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? tensor().begin : tensor().end) = v;
      return true;
    }
    return Fail("a number is out of place");
  }

  bool string(string_t& v) override {
    if (state_ == State::kMetadata) {
      if (out_.metadata.emplace(key_, v).second) return true;
      return FailWith(Reason::kDuplicate, key_, "header has this metadata key twice");
    }
    if (state_ != State::kTensor || key_ != "dtype") return Fail("a string is out of place");
    if (v == "F32") {
      tensor().dtype = DType::kF32;
    } else if (v == "F16") {
      tensor().dtype = DType::kF16;
    } else if (v == "BF16") {
      tensor().dtype = DType::kBF16;
    } else {
      return FailWith(Reason::kDtype, tensor().name,
                      absl::StrCat("dtype ", v.substr(0, 32), " is not one of F32, F16, BF16"));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return Go(State::kTop);
    if (state_ != State::kTop) return Fail("an object is out of place");
    if (key_ == "__metadata__") {
      if (has_metadata_) return FailWith(Reason::kDuplicate, key_, "header has this key twice");
      has_metadata_ = true;
      return Go(State::kMetadata);
    }
    if (out_.tensors.size() == max_tensors_) {
      return Fail(absl::StrCat("more than ", max_tensors_, " tensors"));
    }
    out_.tensors.push_back({.name = key_});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return Go(State::kTensor);
  }

  bool end_object() override {
    if (state_ == State::kTensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return Fail(absl::StrCat(tensor().name, " lacks dtype, shape or data_offsets"));
    }
    return Go(state_ == State::kTop ? State::kDone : State::kTop);
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor) return Fail("a list is out of place");
    if (key_ == "shape") return Go(State::kShape);
    num_offsets_ = 0;
    return key_ == "data_offsets" ? Go(State::kOffsets) : Fail("a list is out of place");
  }

  bool end_array() override {
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      return Fail(absl::StrCat(tensor().name, ": data_offsets must be two numbers"));
    }
    return Go(State::kTensor);
  }

  bool key(string_t& k) override {
    key_ = k;
    if (state_ != State::kTensor) return true;
    bool* seen = k == "dtype"          ? &has_dtype_
                 : k == "shape"        ? &has_shape_
                 : k == "data_offsets" ? &has_offsets_
                                       : nullptr;
    if (seen == nullptr) return Fail(absl::StrCat("unknown key ", k.substr(0, 64)));
    if (*seen) return FailWith(Reason::kDuplicate, tensor().name, "header gives " + k + " twice");
    *seen = true;
    return true;
  }

  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("not valid JSON at byte ", at));
  }

  const absl::Status& status() const { return status_; }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  TensorInfo& tensor() { return out_.tensors.back(); }
  bool Go(State to) {
    state_ = to;
    return true;
  }
  bool Fail(const std::string& text) {
    return FailWith(Reason::kHeaderInvalid, "", absl::StrCat("header: ", text));
  }
  bool FailWith(Reason reason, const std::string& value, const std::string& text) {
    status_ = InvalidField(reason, file_, value, text);
    return false;
  }

  const std::string& file_;
  const size_t max_tensors_;
  SafetensorsHeader& out_;
  State state_ = State::kStart;
  std::string key_;
  int num_offsets_ = 0;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  absl::Status status_;
};

}  // namespace

absl::Status ReadHeaderJson(std::span<const uint8_t> json, const std::string& file,
                            const SafetensorsLimits& limits, SafetensorsHeader& out) {
  if (json.empty() || json[0] != '{') {
    return InvalidField(Reason::kHeaderInvalid, file, "", "header: must begin with {");
  }
  HeaderSax sax(file, limits.max_tensors, out);
  Json::sax_parse(json.begin(), json.end(), &sax);
  return sax.status();
}

}  // namespace rootstock
