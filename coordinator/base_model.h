// What the coordinator knows of the base model that it serves.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "coordinator/options.h"
#include "coordinator/request/request.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {

struct BaseModel {
  ModelSpec spec;
  ServedModel served;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: token ids only
};

// Reads the model's files, but for its weights. An error names the flag or file that is wrong.
absl::StatusOr<BaseModel> LoadBaseModel(const CoordinatorOptions& options);

}  // namespace rootstock
