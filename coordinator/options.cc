#include "coordinator/options.h"

#include <filesystem>
#include <iterator>
#include <utility>

#include "common/base/status.h"
#include "common/flags/host_port.h"
#include "common/objects/object_store.h"

namespace rootstock {
namespace {

absl::Status CheckListen(const std::string& listen) {
  if (IsHostPort(listen, /*lowest_port=*/0)) return absl::OkStatus();
  return InvalidField(Reason::kConfigInvalid, "listen", listen, "must be HOST:PORT");
}

// NAME=PATH; what they name is the registry's to judge.
absl::Status CheckPreloads(const std::vector<std::string>& adapters) {
  for (const std::string& adapter : adapters) {
    const size_t sign = adapter.find('=');
    if (sign == std::string::npos || sign == 0 || sign + 1 == adapter.size()) {
      return InvalidField(Reason::kConfigInvalid, "adapter", adapter, "must be NAME=PATH");
    }
  }
  return absl::OkStatus();
}

// How KV and adapters share a group's pages.
std::vector<FlagSpec> PoolFlags(CoordinatorOptions& o) {
  return {
      {.name = "adapter-eviction",
       .target = &o.adapter_eviction,
       .help = "which idle adapters leave the device first",
       .allowed = {"lru", "lfu", "cost"}},
      {.name = "kv-floor",
       .target = &o.kv_floor,
       .help = "part of a group's pages that adapters leave to KV",
       .min = 0,
       .max = 0.5},
      {.name = "adapter-floor",
       .target = &o.adapter_floor,
       .help = "part that KV leaves to adapters",
       .min = 0,
       .max = 0.4},
      {.name = "prefetch-mb",
       .target = &o.prefetch_mb,
       .help = "MiB of adapters a group fetches ahead of their loads",
       .min = 1,
       .max = 1048576},
  };
}

std::vector<FlagSpec> AdapterFlags(CoordinatorOptions& o) {
  return {
      {.name = "adapter-root",
       .target = &o.adapter_root,
       .help = "clients register PEFT directories under it",
       .placeholder = "DIR"},
      {.name = "adapter",
       .target = &o.adapters,
       .help = "register at start",
       .placeholder = "NAME=PATH"},
      {.name = "adapter-source",
       .target = &o.adapter_sources,
       .help = "file:///DIR or s3://BUCKET/PREFIX that clients may register from",
       .placeholder = "URI"},
      {.name = "adapter-store",
       .target = &o.adapter_store,
       .help = "an unknown name is looked for there as URI/NAME, at its first request",
       .placeholder = "URI"},
      {.name = "object-store",
       .target = &o.object_store,
       .help = "keeps all adapter content, of this coordinator only; --data is a cache then",
       .placeholder = "URI"},
      {.name = "blob-bytes",
       .target = &o.blob_bytes,
       .help = "adapter content under --data; 0: what the disk holds",
       .min = 0},
      {.name = "discard-unknown-content",
       .target = &o.discard_unknown_content,
       .help = "content that the registry does not know goes at the start, not after a week"},
      {.name = "max-adapter-bytes",
       .target = &o.max_adapter_bytes,
       .help = "of an adapter's weights file",
       .min = 1},
      {.name = "max-tenant-bytes",
       .target = &o.max_tenant_bytes,
       .help = "of the content of a tenant's adapters; 0: no limit",
       .min = 0},
      {.name = "max-tenant-upload-bytes",
       .target = &o.max_tenant_upload_bytes,
       .help = "received of a tenant's unfinished uploads",
       .min = 1},
      {.name = "max-upload-bytes",
       .target = &o.max_upload_bytes,
       .help = "received of all unfinished uploads",
       .min = 1},
      {.name = "max-lora-rank",
       .target = &o.max_lora_rank,
       .help = "larger adapters are refused; pads nothing",
       .min = 1,
       .max = 256},
      {.name = "lora-sharding",
       .target = &o.lora_sharding,
       .help = "of adapters on a group's ranks; auto: by rank, ranks and free pages",
       .allowed = {"replicated", "fully-sharded", "auto"}},
  };
}

std::vector<FlagSpec> LimitFlags(CoordinatorOptions& o) {
  return {
      {.name = "max-model-len", .target = &o.max_model_len, .help = "tokens; 0: the model's"},
      {.name = "max-num-seqs",
       .target = &o.max_num_seqs,
       .help = "sequences running in a group",
       .min = 1,
       .max = 4096},
      {.name = "max-decode-rows",
       .target = &o.max_decode_rows,
       .help = "of a step; more sequences take turns; 0: all that run",
       .max = 4096},
      {.name = "max-num-batched-tokens",
       .target = &o.max_num_batched_tokens,
       .help = "tokens a step",
       .min = 1,
       .max = 262144},
      {.name = "max-logprobs",
       .target = &o.max_logprobs,
       .help = "top entries a token",
       .max = 1000000},
      {.name = "max-queue",
       .target = &o.max_queue,
       .help = "requests that wait; more are shed, half of it for adapters on no device",
       .min = 1,
       .max = 10000000},
  };
}

std::vector<FlagSpec> OperationFlags(CoordinatorOptions& o) {
  return {
      {.name = "metrics-port", .target = &o.metrics_port, .help = "0: any", .max = 65535},
      {.name = "port-file",
       .target = &o.port_file,
       .help = "gets what was bound",
       .placeholder = "FILE"},
      {.name = "step-timeout",
       .target = &o.step_timeout,
       .help = "seconds; a group whose step takes longer is lost; 0: never",
       .min = 0,
       .max = 86400},
      {.name = "drain-timeout",
       .target = &o.drain_timeout,
       .help = "seconds that running requests have after SIGTERM",
       .min = 0,
       .max = 86400},
      {.name = "log-level",
       .target = &o.log_level,
       .help = "to stderr",
       .allowed = {"debug", "info", "warning", "error"}},
  };
}

absl::Status CheckStoreUri(const char* flag, const std::string& uri) {
  const auto parsed = ParseStoreUri(uri);
  if (parsed.ok()) return absl::OkStatus();
  return InvalidField(Reason::kConfigInvalid, flag, uri,
                      "must be file:///DIR or s3://BUCKET/PREFIX");
}

}  // namespace

std::vector<FlagSpec> CoordinatorFlags(CoordinatorOptions& o) {
  std::vector<FlagSpec> flags = {
      {.name = "listen",
       .target = &o.listen,
       .help = "gRPC; port 0: any",
       .placeholder = "HOST:PORT"},
      {.name = "data",
       .target = &o.data,
       .help = "registry and adapter content",
       .placeholder = "DIR",
       .required = true},
      {.name = "model",
       .target = &o.model,
       .help = "base model; its config and tokenizer are read",
       .placeholder = "DIR",
       .required = true},
      {.name = "served-model-name",
       .target = &o.served_model_name,
       .help = "default: the directory's name",
       .placeholder = "NAME"},
  };
  for (auto group : {AdapterFlags(o), PoolFlags(o), LimitFlags(o), OperationFlags(o)}) {
    std::move(group.begin(), group.end(), std::back_inserter(flags));
  }
  return flags;
}

absl::Status CheckOptions(const CoordinatorOptions& options) {
  RETURN_IF_ERROR(CheckListen(options.listen));
  RETURN_IF_ERROR(CheckPreloads(options.adapters));
  for (const std::string& uri : options.adapter_sources) {
    RETURN_IF_ERROR(CheckStoreUri("adapter-source", uri));
  }
  if (!options.adapter_store.empty()) {
    RETURN_IF_ERROR(CheckStoreUri("adapter-store", options.adapter_store));
  }
  if (!options.object_store.empty()) {
    RETURN_IF_ERROR(CheckStoreUri("object-store", options.object_store));
  }
  if (!options.data.empty()) return absl::OkStatus();
  return InvalidField(Reason::kConfigInvalid, "data", "", "must name a directory");
}

absl::Status CheckAdapterRoot(const std::string& root) {
  if (root.empty()) return absl::OkStatus();
  std::error_code error;
  const auto status = std::filesystem::status(root, error);
  if (std::filesystem::is_directory(status)) return absl::OkStatus();
  const bool other = std::filesystem::exists(status);
  return InvalidField(Reason::kConfigInvalid, "adapter-root", root,
                      other ? "not a directory" : error.message());
}

}  // namespace rootstock
