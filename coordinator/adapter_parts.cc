#include "coordinator/adapter_parts.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/adapter_loader.h"

namespace rootstock {
namespace {

constexpr int kLazyThreads = 16;  // each may wait for a slow store
constexpr size_t kMaxWaitingLazy = 1024;

absl::StatusOr<std::unique_ptr<AdapterSources>> OpenSources(const CoordinatorOptions& options) {
  AdapterSourceOptions sources;
  sources.store = ObjectStoreOptions::FromEnvironment();
  sources.max_weights_bytes = static_cast<uint64_t>(options.max_adapter_bytes);
  for (const std::string& uri : options.adapter_sources) {
    ASSIGN_OR_RETURN(StoreUri parsed, ParseStoreUri(uri));
    sources.allowed.push_back(std::move(parsed));
  }
  if (!options.adapter_store.empty()) {
    ASSIGN_OR_RETURN(StoreUri parsed, ParseStoreUri(options.adapter_store));
    sources.own.push_back(std::move(parsed));
  }
  return AdapterSources::Open(std::filesystem::path(options.data) / "fetched", std::move(sources));
}

absl::StatusOr<BlobStoreOptions> BlobOptions(const CoordinatorOptions& options) {
  BlobStoreOptions blobs{.max_bytes = static_cast<uint64_t>(options.blob_bytes)};
  if (options.discard_unknown_content) blobs.unknown_grace = std::chrono::hours(0);
  if (!options.object_store.empty()) {
    ASSIGN_OR_RETURN(const StoreUri uri, ParseStoreUri(options.object_store));
    const ObjectStoreOptions store = ObjectStoreOptions::FromEnvironment();
    ASSIGN_OR_RETURN(blobs.remote, OpenObjectStore(uri, store));
    blobs.remote_name = uri.ToString() + " " + store.endpoint;
  }
  return blobs;
}

}  // namespace

absl::StatusOr<AdapterParts> OpenAdapters(const CoordinatorOptions& options, const ModelSpec& model,
                                          const std::string& served_name,
                                          std::shared_ptr<RegistryMetrics> metrics) {
  AdapterParts parts;
  ASSIGN_OR_RETURN(parts.sources, OpenSources(options));
  ASSIGN_OR_RETURN(BlobStoreOptions blobs, BlobOptions(options));
  const PeftLimits limits = {.max_lora_rank = static_cast<int>(options.max_lora_rank),
                             .max_bytes = static_cast<uint64_t>(options.max_adapter_bytes)};
  ASSIGN_OR_RETURN(
      parts.registry,
      Registry::Open({.data_dir = options.data,
                      .adapter_root = options.adapter_root,
                      .sources = parts.sources.get(),
                      .base_name = served_name,
                      .loader = MakeAdapterLoader(model, served_name, limits),
                      .blobs = std::move(blobs),
                      .max_tenant_bytes = static_cast<uint64_t>(options.max_tenant_bytes),
                      .unix_ms = [] { return absl::ToUnixMillis(absl::Now()); },
                      .metrics = std::move(metrics)}));
  parts.uploads = std::make_unique<UploadStore>(
      std::filesystem::path(options.data) / "uploads",
      UploadLimits{.max_weights_bytes = static_cast<uint64_t>(options.max_adapter_bytes),
                   .max_tenant_bytes = static_cast<uint64_t>(options.max_tenant_upload_bytes),
                   .max_bytes = static_cast<uint64_t>(options.max_upload_bytes)});
  RETURN_IF_ERROR(parts.uploads->Open());
  if (!options.adapter_store.empty()) {
    ASSIGN_OR_RETURN(StoreUri store, ParseStoreUri(options.adapter_store));
    parts.lazy_pool = std::make_unique<WorkPool>(kLazyThreads, kMaxWaitingLazy, "adapters");
    parts.lazy =
        std::make_unique<LazyAdapters>(parts.registry.get(), std::move(store), MonotonicClock(),
                                       [pool = parts.lazy_pool.get()](std::function<void()> job) {
                                         return pool->Post(std::move(job));
                                       });
  }
  const Clock clock = MonotonicClock();
  parts.clerk = ThreadTaskQueues(clock)("registry");
  SaveUsesEveryMinute(parts.clerk.get(), clock, parts.registry.get());
  return parts;
}

void SaveUsesEveryMinute(TaskQueue* queue, const Clock& clock, Registry* registry) {
  queue->PostAt(clock() + absl::Minutes(1), [queue, clock, registry] {
    if (const absl::Status saved = registry->SaveUses(); !saved.ok()) {
      LogWarning("last uses of adapters: ", std::string(saved.message()));
    }
    SaveUsesEveryMinute(queue, clock, registry);
  });
}

void PreloadAdapters(const CoordinatorOptions& options, Registry& registry) {
  for (const std::string& adapter : options.adapters) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(adapter, absl::MaxSplits('=', 1));
    const auto entry = registry.RegisterDirectory(parts.first, parts.second, "default");
    if (entry.ok()) {
      LogInfo("adapter ", parts.first, " registered, digest ", entry->digest.Short());
    } else {
      LogError("adapter ", adapter, " refused: ", std::string(entry.status().message()));
    }
  }
}

}  // namespace rootstock
