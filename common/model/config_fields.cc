#include "common/model/config_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

// Read by ParseModelSpec, which refuses what it can't honour.
constexpr auto kHonoured = std::to_array<std::string_view>({
    "architectures",       "model_type",
    "hidden_size",         "intermediate_size",
    "num_hidden_layers",   "num_attention_heads",
    "num_key_value_heads", "head_dim",
    "vocab_size",          "max_position_embeddings",
    "rms_norm_eps",        "hidden_act",
    "rope_theta",          "rope_scaling",
    "rope_parameters",     "tie_word_embeddings",
    "eos_token_id",        "sliding_window",
    "use_sliding_window",  "max_window_layers",
    "layer_types",
});

// Training, bookkeeping, generation defaults and task heads: no effect on the logits.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "classifier_dropout",
    "dropout",
    "rope_interleaved",
    "is_llama_config",
    "pretraining_tp",
    "bos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "unk_token_id",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "tokenizer_class",
    "prefix",
    "name_or_path",
    "model_name",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
    "keys_to_ignore_at_inference",
    "gradient_checkpointing",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    "model_max_length",
    "base_model_tp_plan",
    "base_model_pp_plan",
    "attn_implementation",
    "use_flash_attn",
    "bos_token",
    "eos_token",
    "pad_token",
});

// Known to change the mathematics; served only at the neutral value (or null, false, empty).
struct Restricted {
  std::string_view name;
  std::optional<double> neutral;
  const char* text;
};
constexpr auto kRestricted = std::to_array<Restricted>({
    {"attention_bias", std::nullopt, "bias on all attention projections is not served"},
    {"mlp_bias", std::nullopt, "bias in the MLP is not served"},
    {"quantization_config", std::nullopt, "quantised weights are not served"},
    {"compression_config", std::nullopt, "compressed weights are not served"},
    {"auto_map", std::nullopt, "custom model code is never executed"},
    {"partial_rotary_factor", 1.0, "rotary embedding on part of a head is not served"},
    {"rotary_pct", 1.0, "rotary embedding on part of a head is not served"},
    {"attn_logit_softcapping", std::nullopt, "logit soft-capping is not served"},
    {"final_logit_softcapping", std::nullopt, "logit soft-capping is not served"},
    {"query_pre_attn_scalar", std::nullopt, "another attention scale is not served"},
    {"attention_multiplier", std::nullopt, "another attention scale is not served"},
    {"embedding_multiplier", 1.0, "scaled embeddings are not served"},
    {"residual_multiplier", 1.0, "scaled residuals are not served"},
    {"logits_scaling", 1.0, "scaled logits are not served"},
    {"logit_scale", 1.0, "scaled logits are not served"},
    {"scale_emb", 1.0, "scaled embeddings are not served"},
    {"use_qk_norm", std::nullopt, "query and key norms of this kind are not served"},
    {"qk_layernorm", std::nullopt, "query and key norms of this kind are not served"},
    {"clip_qkv", std::nullopt, "clipped projections are not served"},
    {"alibi", std::nullopt, "ALiBi is not served"},
    {"add_cross_attention", std::nullopt, "cross attention is not served"},
    {"cross_attention_hidden_size", std::nullopt, "cross attention is not served"},
    {"is_decoder", std::nullopt, "encoder-decoder use is not served"},
    {"tie_encoder_decoder", std::nullopt, "encoder-decoder use is not served"},
    {"pruned_heads", std::nullopt, "pruned heads are not served"},
    {"no_rope_layers", std::nullopt, "layers without rotary embedding are not served"},
    {"num_local_experts", std::nullopt, "mixture of experts is not served"},
    {"num_experts", std::nullopt, "mixture of experts is not served"},
});

template <typename Table>
bool Contains(const Table& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

bool IsEmpty(const Json& v) {
  if (v.is_null()) return true;
  if (v.is_boolean()) return !v.get<bool>();
  if (v.is_string()) return v.get_ref<const std::string&>().empty();
  return v.is_structured() && v.empty();
}

absl::Status Refuse(const std::string& name, const Json& value, const char* text) {
  return MakeError(absl::StatusCode::kUnimplemented, Reason::kUnsupportedModel, name, value.dump(),
                   text);
}

}  // namespace

absl::Status CheckConfigFields(const Json& config) {
  for (const auto& [name, value] : config.items()) {
    // A leading underscore marks transformers' private bookkeeping.
    if (Contains(kHonoured, name) || Contains(kHarmless, name) || name.starts_with('_')) continue;
    if (IsEmpty(value)) continue;
    const auto* known = std::find_if(kRestricted.begin(), kRestricted.end(),
                                     [&](const Restricted& r) { return r.name == name; });
    if (known == kRestricted.end()) {
      return Refuse(name, value, "unknown field of config.json; it might change the mathematics");
    }
    if (known->neutral && value.is_number() && value.get<double>() == *known->neutral) continue;
    return Refuse(name, value, known->text);
  }
  return absl::OkStatus();
}

}  // namespace rootstock
