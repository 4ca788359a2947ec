#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/safetensors/safetensors.h"

namespace rootstock {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 64 << 20;

absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kModelInvalid, "model",
                     path.parent_path().string(),
                     absl::StrCat("has neither ", kSingle, " nor ", kIndex));
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const StrictJsonLimits limits = {.max_bytes = kMaxIndexBytes,
                                   .max_keys = kModelFileLimits.max_tensors,
                                   .invalid = Reason::kModelInvalid,
                                   .duplicate = Reason::kModelInvalid};
  ASSIGN_OR_RETURN(const nlohmann::json index, ParseStrictJson(text, kIndex, limits));
  const auto map = index.find("weight_map");
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return InvalidField(Reason::kModelInvalid, kIndex, "", "has no weight_map");
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      return InvalidField(Reason::kModelInvalid, kIndex, tensor, "must name a file beside it");
    }
    out[tensor] = name;
  }
  return out;
}

}  // namespace

absl::StatusOr<ShardedSafetensors> ShardedSafetensors::Open(const std::filesystem::path& model_dir,
                                                            FileUse use,
                                                            const SafetensorsLimits& limits) {
  ShardedSafetensors out;
  const auto open = [&](const std::string& name) -> absl::StatusOr<const SafetensorsFile*> {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(model_dir / name, limits, use));
    out.files_.push_back(std::make_unique<const SafetensorsFile>(std::move(file)));
    return out.files_.back().get();
  };
  std::error_code ignored;
  if (std::filesystem::exists(model_dir / kSingle, ignored)) {
    ASSIGN_OR_RETURN(const SafetensorsFile* file, open(kSingle));
    for (const TensorView& t : file->tensors()) out.by_name_[t.name] = &t;
    return out;
  }
  ASSIGN_OR_RETURN(const auto index, ReadIndex(model_dir / kIndex));
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [tensor, name] : index) {
    if (!shards.contains(name)) {
      ASSIGN_OR_RETURN(shards[name], open(name));
    }
    const TensorView* view = shards[name]->Find(tensor);
    if (view == nullptr) {
      return InvalidField(Reason::kModelInvalid, kIndex, tensor,
                          absl::StrCat(name, " does not hold this tensor"));
    }
    out.by_name_[tensor] = view;
  }
  return out;
}

}  // namespace rootstock
