#include "common/lora/canonical.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strict_json.h"
#include "common/lora/canonical_check.h"

namespace rootstock {
namespace {

using SortedJson = nlohmann::json;  // keys in one order: the bytes are canonical

constexpr char kKey[] = "rootstock.lora";
constexpr int kVersion = 1;
constexpr int kLargestLoraRank = 1 << 16;  // the ceiling proper is the registrar's

std::span<const uint8_t> BytesOf(const std::vector<uint8_t>& v) { return {v.data(), v.size()}; }

// Hexadecimal floating point: exact, and one spelling a number.
std::string ExactFloat(float v) {
  char text[32];
  std::snprintf(text, sizeof text, "%a", static_cast<double>(v));
  return text;
}

std::optional<float> ReadExactFloat(const SortedJson& v) {
  if (!v.is_string()) return std::nullopt;
  const std::string text = v.get<std::string>();
  char* end = nullptr;
  const float f = std::strtof(text.c_str(), &end);
  if (!std::isfinite(f) || ExactFloat(f) != text) return std::nullopt;
  return f;
}

absl::Status Bad(const std::string& text) {
  return InvalidField(Reason::kHeaderInvalid, kCanonicalName, "", text);
}

// One entry of the metadata; nothing when it is not as EncodeCanonical writes it.
std::optional<LoraModule> ReadModule(const SortedJson& entry) {
  if (!entry.is_object() || entry.size() != 4) return std::nullopt;
  const auto layer = entry.find("layer");
  const auto rank = entry.find("lora_rank");
  const auto name = entry.find("module");
  const auto scale = entry.find("scale");
  if (layer == entry.end() || rank == entry.end() || name == entry.end() || scale == entry.end() ||
      !layer->is_number_unsigned() || !rank->is_number_unsigned() || !name->is_string()) {
    return std::nullopt;
  }
  const auto module = ModuleFromName(name->get<std::string>());
  const auto f = ReadExactFloat(*scale);
  if (!module || !f || layer->get<uint64_t>() > INT32_MAX || rank->get<uint64_t>() == 0 ||
      rank->get<uint64_t>() > kLargestLoraRank) {
    return std::nullopt;
  }
  return LoraModule{layer->get<int>(), *module, rank->get<int>(), *f};
}

}  // namespace

absl::StatusOr<LoraSpec> ReadCanonicalSpec(const std::map<std::string, std::string>& metadata) {
  const auto it = metadata.find(kKey);
  if (it == metadata.end() || metadata.size() != 1) {
    return Bad("header has no rootstock.lora metadata, or more than it");
  }
  const StrictJsonLimits limits = {.max_bytes = 4 << 20, .invalid = Reason::kHeaderInvalid};
  ASSIGN_OR_RETURN(const SortedJson json, ParseStrictJson(it->second, kKey, limits));
  const auto modules = json.find("modules");
  if (!json.is_object() || json.size() != 2 || json.value("version", SortedJson()) != kVersion ||
      modules == json.end() || !modules->is_array() || modules->empty()) {
    return Bad("header: rootstock.lora is of another version");
  }
  LoraSpec out;
  for (const SortedJson& entry : *modules) {
    const auto m = ReadModule(entry);
    if (!m) return Bad("header: rootstock.lora has a module that is not canonical");
    if (!out.modules.empty()) {
      const LoraModule& last = out.modules.back();
      if (std::tie(last.layer, last.module) >= std::tie(m->layer, m->module)) {
        return Bad("header: rootstock.lora lists modules out of order");
      }
    }
    out.modules.push_back(*m);
  }
  return out;
}

std::string EncodeCanonical(const LoraSpec& spec, const std::vector<LoraWeights>& weights,
                            const ModelSpec& model) {
  SortedJson modules = SortedJson::array();
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const LoraModule& m = spec.modules[i];
    const LoraWeights& w = weights[i];
    modules.push_back({{"layer", m.layer},
                       {"lora_rank", m.lora_rank},
                       {"module", ModuleName(m.module)},
                       {"scale", ExactFloat(m.scale)}});
    const std::string path = ModulePath(m.layer, m.module);
    tensors.push_back(
        {path + ".lora_A", w.a_dtype, {m.lora_rank, model.in_features(m.module)}, BytesOf(w.a)});
    tensors.push_back(
        {path + ".lora_B", w.b_dtype, {model.out_features(m.module), m.lora_rank}, BytesOf(w.b)});
  }
  const SortedJson json = {{"modules", modules}, {"version", kVersion}};
  return EncodeSafetensors(std::move(tensors), {{kKey, json.dump()}});
}

absl::StatusOr<CanonicalAdapter> CanonicalAdapter::Open(const std::filesystem::path& path,
                                                        const ModelSpec& model) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, {}));
  return Create(std::move(file), model);
}

absl::StatusOr<CanonicalAdapter> CanonicalAdapter::Parse(std::span<const uint8_t> bytes,
                                                         const ModelSpec& model) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Parse(bytes, kCanonicalName, {}));
  return Create(std::move(file), model);
}

absl::StatusOr<CanonicalAdapter> CanonicalAdapter::Create(SafetensorsFile file,
                                                          const ModelSpec& model) {
  ASSIGN_OR_RETURN(const CheckedCanonical<TensorView> checked,
                   CheckCanonical(file, file.metadata(), file.tensors().size(), model));
  CanonicalAdapter out;
  out.spec_ = checked.spec;
  for (size_t i = 0; i < checked.tensors.size(); i += 2) {
    out.modules_.push_back({*checked.tensors[i], *checked.tensors[i + 1]});
  }
  out.file_.push_back(std::move(file));
  return out;
}

}  // namespace rootstock
