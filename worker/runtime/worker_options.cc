#include "worker/runtime/worker_options.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/adapter_name.h"
#include "common/base/status.h"
#include "common/flags/host_port.h"

namespace rootstock {
namespace {

FlagSetter Address(const char* flag, std::string* target) {
  return {.set = [flag, target](const std::vector<std::string>& texts) -> absl::Status {
    *target = texts.front();
    if (IsHostPort(*target, /*lowest_port=*/1)) return absl::OkStatus();
    return InvalidField(Reason::kConfigInvalid, flag, *target, "must be HOST:PORT");
  }};
}

FlagSetter GroupName(const char* flag, std::string* target) {
  return {.set = [flag, target](const std::vector<std::string>& texts) -> absl::Status {
    *target = texts.front();
    if (IsPlainName(*target)) return absl::OkStatus();
    return InvalidField(Reason::kConfigInvalid, flag, *target,
                        absl::StrCat("must match ", kNamePattern));
  }};
}

}  // namespace

std::vector<FlagSpec> WorkerFlags(WorkerOptions& o) {
  o.cache_dir = DefaultCacheDir();
  return {
      {.name = "coordinator",
       .target = Address("coordinator", &o.coordinator),
       .help = "address of the coordinator",
       .placeholder = "HOST:PORT",
       .required = true},
      {.name = "model",
       .target = &o.model,
       .help = "Hugging Face model directory",
       .placeholder = "DIR",
       .required = true},
      {.name = "device",
       .target = &o.device,
       .help = "where the model runs; auto takes what this build and host have",
       .allowed = {"auto", "cpu", "cuda"}},
      {.name = "group",
       .target = GroupName("group", &o.group),
       .help = "name of this group at the coordinator",
       .placeholder = "NAME"},
      {.name = "dtype",
       .target = &o.dtype,
       .help = "type of the weights in memory; auto as in the files, f16 as f32, on a GPU as bf16",
       .allowed = {"auto", "f32", "bf16"}},
      {.name = "load-format",
       .target = &o.load_format,
       .help = "auto reads the weights, dummy makes seeded random ones",
       .allowed = {"auto", "dummy"}},
      {.name = "num-pages",
       .target = &o.num_pages,
       .help = "pages of KV and adapters on each rank; 0 is what fits"},
      {.name = "page-tokens",
       .target = &o.page_tokens,
       .help = "tokens whose KV a page holds; default 16, on a GPU more while pages are under 1 MB",
       .min = 4,
       .max = 64},
      {.name = "object-store",
       .target = &o.object_uri,
       .help = "the coordinator's: adapter content comes from there, else from the coordinator",
       .placeholder = "URI"},
      {.name = "cache-dir",
       .target = &o.cache_dir,
       .help = "adapter content of this node",
       .placeholder = "DIR"},
      {.name = "host-cache-bytes",
       .target = &o.host_cache_bytes,
       .help = "of adapters on the host, each rank; -1 is 4 GiB or an eighth of what is free",
       .min = -1},
      {.name = "disk-cache-bytes",
       .target = &o.disk_cache_bytes,
       .help = "of adapters in cache-dir, all processes together; 0 is half of what is free",
       .min = 0},
      {.name = "metrics-port",
       .target = &o.metrics_port,
       .help = "plus the local rank; 0 takes a free one",
       .min = 0,
       .max = 65535},
      {.name = "port-file",
       .target = &o.port_file,
       .help = "where to write the metrics ports of all ranks",
       .placeholder = "FILE"},
      {.name = "log-level",
       .target = &o.log_level,
       .help = "least serious lines shown",
       .allowed = {"debug", "info", "warning", "error"}},
      {.name = "threads",
       .target = &o.threads,
       .help = "of each rank; 0 shares the cores among the ranks of a host",
       .min = 0,
       .max = 1024},
      {.name = "step-timeout",
       .target = &o.step_timeout,
       .help = "of several ranks on GPUs: the group ends when a step lasts longer",
       .placeholder = "SECONDS",
       .min = 1,
       .max = 3600},
  };
}

std::string DefaultCacheDir() {
  if (const char* cache = std::getenv("ROOTSTOCK_CACHE"); cache != nullptr && *cache != '\0') {
    return cache;
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.cache/rootstock";
}

}  // namespace rootstock
