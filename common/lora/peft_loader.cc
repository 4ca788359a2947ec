#include "common/lora/peft_loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/lora/peft_config.h"
#include "common/lora/peft_files.h"
#include "common/lora/peft_weights.h"
#include "common/lora/target_rules.h"
#include "common/lora/tensor_keys.h"

namespace rootstock {
namespace {

// The pair of one module of the file, which may be a fused one.
struct FilePair {
  TensorKey key;  // of whichever came first
  const TensorInfo* a = nullptr;
  const TensorInfo* b = nullptr;
};
using FilePairs = std::map<std::string, FilePair>;  // by TensorKey::ModulePath

absl::StatusOr<FilePairs> PairTensors(const SafetensorsHeader& header, const ModelSpec& model) {
  FilePairs out;
  const std::string* adapter_name = nullptr;
  std::set<std::pair<int, Module>> attached;
  for (const TensorInfo& t : header.tensors) {
    ASSIGN_OR_RETURN(TensorKey key, ParseTensorKey(t.name, model));
    FilePair& pair = out[key.ModulePath()];
    const TensorInfo*& slot = key.is_b ? pair.b : pair.a;
    if (slot != nullptr) {
      return InvalidField(Reason::kDuplicate, "tensor", t.name,
                          absl::StrCat("is the same as ", slot->name));
    }
    slot = &t;
    if (pair.a != nullptr && pair.b != nullptr) {
      if (pair.key.adapter_name != key.adapter_name) {
        return InvalidField(Reason::kUnpairedTensor, "tensor", t.name,
                            "its other half is of another adapter's name");
      }
      continue;
    }
    for (const Module m : key.parts) {
      if (!attached.emplace(key.layer, m).second) {
        return InvalidField(Reason::kDuplicate, "tensor", t.name,
                            absl::StrCat("a second tensor for ", ModulePath(key.layer, m)));
      }
    }
    pair.key = std::move(key);
    if (adapter_name == nullptr) adapter_name = &pair.key.adapter_name;
    if (pair.key.adapter_name != *adapter_name) {
      return InvalidField(Reason::kUnattachedTensor, "tensor", t.name,
                          "the file holds more than one adapter");
    }
  }
  return out;
}

absl::Status CheckPaired(const FilePair& pair) {
  if (pair.a != nullptr && pair.b != nullptr) return absl::OkStatus();
  const TensorInfo& half = pair.a != nullptr ? *pair.a : *pair.b;
  return InvalidField(
      Reason::kUnpairedTensor, "tensor", half.name,
      absl::StrCat("has no lora_", pair.a != nullptr ? "B" : "A", " for ", pair.key.ModulePath()));
}

absl::Status CheckShape(const TensorInfo& t, const std::string& path, char side, int64_t rows,
                        int64_t columns, int lora_rank) {
  if (t.shape == std::vector<int64_t>{rows, columns}) return absl::OkStatus();
  return InvalidField(
      Reason::kShapeMismatch, absl::StrCat(path, ".lora_", std::string(1, side)),
      absl::StrCat("[", absl::StrJoin(t.shape, ", "), "]"),
      absl::StrCat("must be [", rows, ", ", columns, "] for lora_rank ", lora_rank));
}

// Names by which the config's rules may know a pair (or one part of a fused pair).
std::vector<std::string> NamesOf(const TensorKey& key) {
  std::vector<std::string> names = {key.own_path};
  if (key.ModulePath() != key.own_path) names.push_back(key.ModulePath());
  return names;
}

absl::StatusOr<bool> IsTargeted(const TensorKey& key, TargetRules& rules) {
  ASSIGN_OR_RETURN(const bool whole, rules.Targets(NamesOf(key)));
  if (whole || key.parts.size() == 1) return whole;
  // A file whose projections were fused after training.
  for (const Module m : key.parts) {
    const std::string name = ModulePath(key.layer, m);
    ASSIGN_OR_RETURN(const bool part, rules.Targets({&name, 1}));
    if (!part) return false;
  }
  return true;
}

// Modules that a pair becomes, lora_rank and scale resolved and checked against the shapes.
absl::StatusOr<std::vector<LoraModule>> ModulesOf(const FilePair& pair, const PeftConfig& config,
                                                  TargetRules& rules, const ModelSpec& model,
                                                  const PeftLimits& limits) {
  std::vector<LoraModule> out;
  int64_t out_features = 0;
  for (const Module m : pair.key.parts) {
    std::vector<std::string> names = NamesOf(pair.key);
    if (pair.key.parts.size() > 1) names.push_back(ModulePath(pair.key.layer, m));
    ASSIGN_OR_RETURN(const int r, rules.LoraRank(names));
    ASSIGN_OR_RETURN(const double alpha, rules.Alpha(names));
    if (r > limits.max_lora_rank) {
      return InvalidField(Reason::kRankTooHigh, "r", absl::StrCat(r),
                          absl::StrCat("lora_rank of ", pair.key.ModulePath(),
                                       " is over the ceiling of ", limits.max_lora_rank));
    }
    const double scale = config.use_rslora ? alpha / std::sqrt(r) : alpha / r;
    out.push_back({pair.key.layer, m, r, static_cast<float>(scale)});
    out_features += model.out_features(m);
  }
  const int r = out.front().lora_rank;
  const std::string path = pair.key.ModulePath();
  for (const LoraModule& m : out) {
    // The parts of a fused pair share A.
    if (m.lora_rank != r) {
      return InvalidField(Reason::kShapeMismatch, "rank_pattern", path,
                          "gives the parts of a fused module different lora_ranks");
    }
  }
  const int64_t in = model.in_features(pair.key.parts.front());
  RETURN_IF_ERROR(CheckShape(*pair.a, path, 'A', r, in, r));
  RETURN_IF_ERROR(CheckShape(*pair.b, path, 'B', out_features, r, r));
  return out;
}

// Reads a pair's numbers and hands each module its share: all of A, its rows of B.
absl::Status ReadPair(const FilePair& pair, const std::vector<LoraModule>& modules,
                      const WeightsReader& reader, const ModelSpec& model,
                      std::map<std::pair<int, Module>, LoraWeights>& out) {
  ASSIGN_OR_RETURN(std::vector<uint8_t> a, reader.Read(*pair.a, pair.key.ModulePath()));
  ASSIGN_OR_RETURN(std::vector<uint8_t> b, reader.Read(*pair.b, pair.key.ModulePath()));
  size_t at = 0;
  for (const LoraModule& m : modules) {
    const size_t bytes =
        size_t{1} * model.out_features(m.module) * m.lora_rank * DTypeBytes(pair.b->dtype);
    LoraWeights& w = out[{m.layer, m.module}];
    w.a_dtype = pair.a->dtype;
    w.b_dtype = pair.b->dtype;
    if (modules.size() == 1) {
      w.a = std::move(a);
      w.b = std::move(b);
      break;
    }
    w.a = a;
    w.b.assign(b.begin() + at, b.begin() + at + bytes);
    at += bytes;
  }
  return absl::OkStatus();
}

std::string TargetsShown(const PeftConfig& config) {
  return absl::StrCat("[", absl::StrJoin(config.target_modules, ", "), "]").substr(0, 200);
}

// Could a list of targets name anything in the model? Regexes are asked of the file's modules only.
absl::Status CheckTargetsKnown(const PeftConfig& config) {
  if (config.targets_are_regex) return absl::OkStatus();
  for (const std::string& target : config.target_modules) {
    const std::string leaf = target.substr(target.rfind('.') + 1);  // npos + 1 is 0
    if (ModuleFromName(leaf) || leaf == "qkv_proj" || leaf == "gate_up_proj") {
      return absl::OkStatus();
    }
  }
  return InvalidField(Reason::kModuleUnknown, "target_modules", TargetsShown(config),
                      "names no module of the model that adapters may attach to: no module "
                      "attached");
}

}  // namespace

absl::StatusOr<PeftAdapter> LoadPeftAdapter(
    const std::filesystem::path& path, const ModelSpec& model, const PeftLimits& limits,
    const std::function<void(uint64_t bytes)>& before_numbers) {
  ASSIGN_OR_RETURN(const PeftDirectory dir, PeftDirectory::Open(path));
  ASSIGN_OR_RETURN(const std::string text, ReadPeftConfigFile(dir));
  ASSIGN_OR_RETURN(const PeftConfig config, ParsePeftConfig(text));
  RETURN_IF_ERROR(CheckTargetsKnown(config));
  ASSIGN_OR_RETURN(TargetRules rules, TargetRules::Create(config));
  ASSIGN_OR_RETURN(const SteadyFile file, OpenPeftWeights(dir));
  ASSIGN_OR_RETURN(const WeightsReader reader, WeightsReader::Create(file, limits));
  ASSIGN_OR_RETURN(const FilePairs pairs, PairTensors(reader.header(), model));

  // Everything is checked before the first number is read.
  std::map<std::string, std::vector<LoraModule>> modules;
  for (const auto& [path, pair] : pairs) {
    ASSIGN_OR_RETURN(const bool targeted, IsTargeted(pair.key, rules));
    if (!targeted) {
      const TensorInfo& t = pair.a != nullptr ? *pair.a : *pair.b;
      return InvalidField(Reason::kUnattachedTensor, "tensor", t.name,
                          absl::StrCat("is for a module that the config's target_modules ",
                                       TargetsShown(config), " and its other rules leave out"));
    }
    RETURN_IF_ERROR(CheckPaired(pair));
    ASSIGN_OR_RETURN(modules[path], ModulesOf(pair, config, rules, model, limits));
  }
  if (pairs.empty()) {
    return InvalidField(Reason::kNothingAttached, "target_modules", TargetsShown(config),
                        "no module attached: the file holds no LoRA tensors");
  }
  if (before_numbers) before_numbers(file.size());
  std::map<std::pair<int, Module>, LoraWeights> weights;
  PeftAdapter out;
  for (const auto& [path, pair] : pairs) {
    RETURN_IF_ERROR(ReadPair(pair, modules[path], reader, model, weights));
    out.spec.modules.insert(out.spec.modules.end(), modules[path].begin(), modules[path].end());
  }
  std::sort(out.spec.modules.begin(), out.spec.modules.end(),
            [](const LoraModule& a, const LoraModule& b) {
              return std::tie(a.layer, a.module) < std::tie(b.layer, b.module);
            });
  for (auto& [at, w] : weights) out.weights.push_back(std::move(w));  // in the same order
  out.base_model_name = config.base_model_name;
  out.harmless_fields = config.harmless_fields;
  for (std::string& note : rules.Unused()) out.harmless_fields.push_back(std::move(note));
  return out;
}

std::string EncodeCanonical(const PeftAdapter& adapter, const ModelSpec& model) {
  return EncodeCanonical(adapter.spec, adapter.weights, model);
}

}  // namespace rootstock
