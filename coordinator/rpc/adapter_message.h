// What clients read of an adapter: its entry, receipt, and where it is.
#pragma once

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/engine/engine.h"
#include "rootstock/v1/adapters.pb.h"

namespace rootstock {

// `content` may be null; the receipt has no page counts then. INTERNAL when the stored receipt
// can't be read.
absl::Status FillAdapter(const AdapterEntry& entry, const AdapterHandle& content,
                         const EngineStatus& status, const ModelSpec& model, v1::Adapter* out);

}  // namespace rootstock
