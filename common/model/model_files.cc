#include "common/model/model_files.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/model/json_fields.h"
#include "common/model/model_spec.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

constexpr std::streamsize kMaxBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadModelFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::optional<std::string>();
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), kMaxBytes + 1);
  text.resize(static_cast<size_t>(in.gcount()));
  if (static_cast<std::streamsize>(text.size()) > kMaxBytes) {
    return InvalidField(Reason::kModelInvalid, path.filename().string(), "",
                        absl::StrCat("is larger than ", kMaxBytes, " bytes"));
  }
  return std::optional<std::string>(std::move(text));
}

absl::StatusOr<std::vector<int32_t>> ParseEosTokenIds(const Json& config, int64_t vocab_size) {
  std::vector<int32_t> out;
  const Json* v = JsonFields(config).Find("eos_token_id");
  if (v == nullptr) return out;
  const Json list = v->is_array() ? *v : Json::array({*v});
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      return JsonFields::Bad("eos_token_id", *v, "must be a token id or a list of them");
    }
    if (id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size) out.push_back(id.get<int32_t>());
  }
  return out;
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir) {
  GenerationDefaults out;
  ASSIGN_OR_RETURN(const auto text, ReadModelFile(model_dir / "generation_config.json"));
  if (!text) return out;
  StrictJsonLimits limits;
  limits.invalid = limits.duplicate = Reason::kModelInvalid;
  ASSIGN_OR_RETURN(const Json config, ParseStrictJson(*text, "generation_config.json", limits));
  if (!config.is_object()) {
    return InvalidField(Reason::kModelInvalid, "generation_config.json", "", "must be an object");
  }
  const JsonFields f(config);
  const auto number = [&](const char* name, double high, std::optional<float>& to) -> absl::Status {
    ASSIGN_OR_RETURN(const auto v, f.Number(name, 0.0, high));
    if (v) to = static_cast<float>(*v);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(number("temperature", 1e6, out.temperature));
  RETURN_IF_ERROR(number("top_p", 1.0, out.top_p));
  RETURN_IF_ERROR(number("min_p", 1.0, out.min_p));
  RETURN_IF_ERROR(number("repetition_penalty", 1e6, out.repetition_penalty));
  ASSIGN_OR_RETURN(const auto top_k, f.Int("top_k", -1, std::numeric_limits<int>::max()));
  if (top_k) out.top_k = *top_k;
  ASSIGN_OR_RETURN(out.do_sample, f.Bool("do_sample"));
  ASSIGN_OR_RETURN(out.eos_token_ids,
                   ParseEosTokenIds(config, std::numeric_limits<int32_t>::max()));
  return out;
}

}  // namespace rootstock
