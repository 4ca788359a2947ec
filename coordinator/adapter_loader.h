// Reads PEFT directories for the registry.
#pragma once

#include <string>

#include "common/lora/peft_loader.h"
#include "common/lora/receipt.h"
#include "common/model/model_spec.h"
#include "coordinator/adapters/adapter.h"

namespace rootstock {

// Adapters of `model`; names in receipts are compared with `served_name`. All that are loaded at
// once take the memory of one with limits.max_bytes of weights: others wait before they read
// theirs, what was loaded counts until it is dropped.
AdapterLoader MakeAdapterLoader(ModelSpec model, std::string served_name, const PeftLimits& limits);

// Keys are those of the Receipt message in adapters.proto: what follows from the content, and what
// only the config said.
std::string ReceiptToJson(const Receipt& receipt);
std::string ConfigToJson(const Receipt& receipt);

}  // namespace rootstock
