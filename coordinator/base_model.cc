#include "coordinator/base_model.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/scheduler/scheduler.h"

namespace rootstock {
namespace {

std::string ServedName(const CoordinatorOptions& options) {
  if (!options.served_model_name.empty()) return options.served_model_name;
  std::filesystem::path path = std::filesystem::path(options.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename();
}

absl::StatusOr<uint32_t> ModelLength(const CoordinatorOptions& options, const ModelSpec& spec) {
  const auto most = static_cast<uint32_t>(spec.max_position);
  if (options.max_model_len > most) {
    return InvalidField(Reason::kConfigInvalid, "max-model-len",
                        absl::StrCat(options.max_model_len),
                        absl::StrCat("the model has ", most, " positions"));
  }
  return options.max_model_len > 0 ? options.max_model_len : most;
}

// A step's sampled tokens with their logprobs are one message.
absl::Status CheckLogprobs(const CoordinatorOptions& options, const ModelSpec& spec) {
  const uint64_t top = std::min<uint64_t>(options.max_logprobs, spec.vocab_size);
  const uint64_t bytes = options.max_num_seqs * LogprobBytes(top);
  if (bytes <= kMaxSampledResultBytes) return absl::OkStatus();
  return InvalidField(
      Reason::kConfigInvalid, "max-logprobs", absl::StrCat(options.max_logprobs),
      absl::StrCat(options.max_num_seqs, " sequences (--max-num-seqs) with ", top,
                   " top entries a token (--max-logprobs) make a result of ", bytes,
                   " bytes, more than the ", kMaxSampledResultBytes, " of one message"));
}

}  // namespace

absl::StatusOr<BaseModel> LoadBaseModel(const CoordinatorOptions& options) {
  RETURN_IF_ERROR(CheckAdapterRoot(options.adapter_root));
  BaseModel model;
  ASSIGN_OR_RETURN(model.spec, LoadModelSpec(options.model));
  RETURN_IF_ERROR(CheckLogprobs(options, model.spec));
  ServedModel& served = model.served;
  ASSIGN_OR_RETURN(served.defaults, LoadGenerationDefaults(options.model));
  ASSIGN_OR_RETURN(served.max_model_len, ModelLength(options, model.spec));
  served.name = ServedName(options);
  served.vocab_size = model.spec.vocab_size;
  served.max_logprobs = options.max_logprobs;
  served.eos_token_ids = served.defaults.eos_token_ids.empty() ? model.spec.eos_token_ids
                                                               : served.defaults.eos_token_ids;
  auto tokenizer = Tokenizer::Load(options.model);
  if (tokenizer.ok()) {
    model.tokenizer = *std::move(tokenizer);
  } else if (absl::IsNotFound(tokenizer.status())) {
    LogWarning("model ", served.name, " has no tokenizer: it serves token ids");
  } else {
    return tokenizer.status();
  }
  return model;
}

}  // namespace rootstock
