#include "common/lora/tensor_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

using Segments = std::vector<std::string>;

constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod", "_fsdp_wrapped_module",
                                                       "_checkpoint_wrapped_module", "_module"};
constexpr std::array<std::string_view, 4> kPrefixes = {"base_model", "model", "language_model",
                                                       "module"};

template <size_t N>
bool Contains(const std::array<std::string_view, N>& list, const std::string& s) {
  return std::find(list.begin(), list.end(), s) != list.end();
}

absl::Status Unattached(const std::string& key, const std::string& why) {
  return InvalidField(Reason::kUnattachedTensor, "tensor", key, why);
}

// Tensors that belong to other methods say so better than "unattached".
absl::Status CheckKind(const std::string& key, const Segments& segments) {
  const auto has = [&](const char* s) {
    return std::find(segments.begin(), segments.end(), s) != segments.end();
  };
  if (has("lora_magnitude_vector")) {
    return InvalidField(Reason::kDora, "tensor", key, "a DoRA magnitude; DoRA is not served");
  }
  if (has("modules_to_save")) {
    return InvalidField(Reason::kModulesToSave, "tensor", key,
                        "a fully trained module (modules_to_save) is not served");
  }
  if (segments.back() == "bias") {
    return InvalidField(Reason::kBias, "tensor", key, "trained biases are not served");
  }
  return absl::OkStatus();
}

std::vector<Module> PartsOf(const std::string& block, const std::string& leaf) {
  const bool attention = block == "self_attn";
  if (attention && leaf == "qkv_proj") return {Module::kQ, Module::kK, Module::kV};
  if (!attention && leaf == "gate_up_proj") return {Module::kGate, Module::kUp};
  const auto module = ModuleFromName(leaf);
  if (!module) return {};
  const bool mlp = *module == Module::kGate || *module == Module::kUp || *module == Module::kDown;
  return attention != mlp ? std::vector<Module>{*module} : std::vector<Module>{};
}

// A layer's number as PyTorch writes it.
bool ReadLayer(const std::string& s, int& layer) {
  if (s.empty() || s.size() > 6 || (s.size() > 1 && s[0] == '0')) return false;
  if (!std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; })) return false;
  return absl::SimpleAtoi(s, &layer);
}

}  // namespace

std::string TensorKey::ModulePath() const {
  return absl::StrCat("model.layers.", layer, ".", block, ".", leaf);
}

absl::StatusOr<TensorKey> ParseTensorKey(const std::string& key, const ModelSpec& model) {
  Segments s = absl::StrSplit(key, '.');
  RETURN_IF_ERROR(CheckKind(key, s));
  std::erase_if(s, [](const std::string& x) { return Contains(kWrappers, x); });
  // PEFT's own prefix is no part of a module's name.
  size_t own = 0;
  while (own < s.size() && s[own] == "module") ++own;
  while (own + 1 < s.size() && s[own] == "base_model" && s[own + 1] == "model") own += 2;
  size_t at = own;
  while (at < s.size() && Contains(kPrefixes, s[at])) ++at;
  // layers N block leaf lora_X [adapter] weight
  const size_t rest = s.size() - at;
  if ((rest != 6 && rest != 7) || s[at] != "layers" || s.back() != "weight") {
    return Unattached(key, "belongs to no module that adapters may attach to");
  }
  TensorKey out;
  out.block = s[at + 2];
  out.leaf = s[at + 3];
  out.parts = out.block == "self_attn" || out.block == "mlp" ? PartsOf(out.block, out.leaf)
                                                             : std::vector<Module>{};
  if (out.parts.empty() || (s[at + 4] != "lora_A" && s[at + 4] != "lora_B")) {
    return Unattached(key, "belongs to no module that adapters may attach to");
  }
  if (!ReadLayer(s[at + 1], out.layer) || out.layer >= model.num_layers) {
    return Unattached(key, absl::StrCat("the model's layers are 0 to ", model.num_layers - 1));
  }
  out.is_b = s[at + 4] == "lora_B";
  if (rest == 7) out.adapter_name = s[at + 5];
  out.own_path = absl::StrJoin(s.begin() + own, s.begin() + at + 4, ".");
  return out;
}

}  // namespace rootstock
