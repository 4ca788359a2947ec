// What a canonical file's header must say, however much of the file is there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/lora_spec.h"
#include "common/model/model_spec.h"

namespace rootstock {

constexpr char kCanonicalName[] = "canonical adapter";  // as errors call it

template <typename Tensor>
struct CheckedCanonical {
  LoraSpec spec;
  std::vector<const Tensor*> tensors;  // A and B of each of spec.modules, in turn
};

// kInvalidArgument/header_invalid unless the metadata is as EncodeCanonical writes it.
absl::StatusOr<LoraSpec> ReadCanonicalSpec(const std::map<std::string, std::string>& metadata);

// `file` finds a tensor by its name: a SafetensorsFile or a SafetensorsHeader. Pointers are into
// it. Errors of CanonicalAdapter::Parse.
template <typename File>
auto CheckCanonical(const File& file, const std::map<std::string, std::string>& metadata,
                    size_t num_tensors, const ModelSpec& model) {
  using Tensor = std::remove_cvref_t<decltype(*file.Find(""))>;
  using Checked = absl::StatusOr<CheckedCanonical<Tensor>>;
  CheckedCanonical<Tensor> out;
  absl::StatusOr<LoraSpec> spec = ReadCanonicalSpec(metadata);
  if (!spec.ok()) return Checked(spec.status());
  out.spec = *std::move(spec);
  for (const LoraModule& m : out.spec.modules) {
    const std::string path = ModulePath(m.layer, m.module);
    if (m.layer >= model.num_layers) {
      return Checked(InvalidField(Reason::kBaseMismatch, kCanonicalName, path,
                                  absl::StrCat("this base has ", model.num_layers, " layers")));
    }
    const std::pair<std::string, std::vector<int64_t>> wanted[] = {
        {path + ".lora_A", {m.lora_rank, model.in_features(m.module)}},
        {path + ".lora_B", {model.out_features(m.module), m.lora_rank}}};
    for (const auto& [name, shape] : wanted) {
      const Tensor* const tensor = file.Find(name);
      if (tensor == nullptr) {
        return Checked(InvalidField(Reason::kUnpairedTensor, kCanonicalName, name, "is missing"));
      }
      if (tensor->shape != shape) {
        return Checked(
            InvalidField(Reason::kShapeMismatch, kCanonicalName, name,
                         absl::StrCat("must be ", shape[0], " × ", shape[1], " for this base")));
      }
      out.tensors.push_back(tensor);
    }
  }
  if (num_tensors != out.tensors.size()) {
    return Checked(InvalidField(Reason::kUnattachedTensor, kCanonicalName,
                                absl::StrCat(num_tensors),
                                absl::StrCat("tensors for ", out.spec.modules.size(), " modules")));
  }
  return Checked(std::move(out));
}

}  // namespace rootstock
