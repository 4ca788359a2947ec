// The coordinator's adapters: what keeps them and where they come from.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "coordinator/adapters/lazy_adapters.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/content/adapter_sources.h"
#include "coordinator/content/uploads/upload_store.h"
#include "coordinator/engine/task_queue.h"
#include "coordinator/options.h"
#include "coordinator/rpc/work_pool.h"

namespace rootstock {

// In the order of construction: what comes later uses what comes before.
struct AdapterParts {
  std::unique_ptr<AdapterSources> sources;
  std::unique_ptr<Registry> registry;
  std::unique_ptr<UploadStore> uploads;
  std::unique_ptr<LazyAdapters> lazy;   // null without --adapter-store
  std::unique_ptr<WorkPool> lazy_pool;  // where it fetches; ends first
  std::shared_ptr<TaskQueue> clerk;     // of SaveUsesEveryMinute
};

// Adapters' last uses are durable a minute later at most. The queue ends before the registry.
void SaveUsesEveryMinute(TaskQueue* queue, const Clock& clock, Registry* registry);

// Everything under --data. Errors name the flag or file.
absl::StatusOr<AdapterParts> OpenAdapters(const CoordinatorOptions& options, const ModelSpec& model,
                                          const std::string& served_name,
                                          std::shared_ptr<RegistryMetrics> metrics);

// --adapter; one that is refused is reported, not fatal.
void PreloadAdapters(const CoordinatorOptions& options, Registry& registry);

}  // namespace rootstock
