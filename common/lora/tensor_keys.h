// Names of LoRA tensors as trainers, wrappers and converters spell them, brought to one form.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace rootstock {

// Where a tensor of an adapter file belongs.
struct TensorKey {
  int layer = 0;
  std::string block;          // "self_attn" or "mlp"
  std::string leaf;           // "q_proj", …, "qkv_proj", "gate_up_proj"
  std::vector<Module> parts;  // more than one: fused, in the order of B's rows
  bool is_b = false;
  std::string adapter_name;  // "default" in "lora_A.default.weight"; empty in "lora_A.weight"
  std::string own_path;      // the module as the file spells it, without PEFT's and wrappers' parts

  // "model.layers.N.self_attn.LEAF"
  std::string ModulePath() const;
};

// Accepted before "layers.N": any of base_model., model., language_model., module.; wrappers'
// segments (_orig_mod, …) anywhere. kInvalidArgument, naming the key: unattached_tensor, or dora,
// bias, modules_to_save for tensors of those kinds.
absl::StatusOr<TensorKey> ParseTensorKey(const std::string& key, const ModelSpec& model);

}  // namespace rootstock
