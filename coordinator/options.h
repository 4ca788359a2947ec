// lora-coordinator's flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/flags/flags.h"

namespace rootstock {

struct CoordinatorOptions {
  std::string listen = "0.0.0.0:50051";
  std::string data;
  std::string model;
  std::string served_model_name;             // empty: the model directory's name
  std::string adapter_root;                  // empty: clients can't register by path
  std::vector<std::string> adapters;         // NAME=PATH
  std::vector<std::string> adapter_sources;  // URIs that clients may register from
  std::string adapter_store;                 // URI; unknown names are looked for in it
  std::string object_store;                  // URI; holds all content, the disk is a cache then
  int64_t blob_bytes = 0;                    // of content on disk; 0: what there is
  bool discard_unknown_content = false;
  int64_t max_adapter_bytes = int64_t{4} << 30;
  int64_t max_tenant_bytes = 0;  // of a tenant's adapters; 0: no limit
  int64_t max_tenant_upload_bytes = int64_t{8} << 30;
  int64_t max_upload_bytes = int64_t{32} << 30;
  uint32_t max_model_len = 0;  // 0: the model's
  uint32_t max_num_seqs = 64;
  uint32_t max_decode_rows = 0;  // 0: as many as run
  uint32_t max_num_batched_tokens = 2048;
  uint32_t max_logprobs = 20;
  uint32_t max_lora_rank = 256;
  std::string lora_sharding = "replicated";
  std::string adapter_eviction = "lru";
  double kv_floor = 0.1;  // of a group's pages
  double adapter_floor = 0.05;
  uint32_t prefetch_mb = 1024;
  uint32_t max_queue = 1024;
  uint32_t metrics_port = 9400;
  std::string port_file;
  double step_timeout = 60;   // seconds; 0: never
  double drain_timeout = 30;  // seconds
  std::string log_level = "info";
};

// Rows that fill `options`, which is borrowed.
std::vector<FlagSpec> CoordinatorFlags(CoordinatorOptions& options);

// What no row of the table can tell: INVALID_ARGUMENT/config_invalid for a `listen` that is not
// HOST:PORT, an `adapters` item that is not NAME=PATH, an empty `data`.
absl::Status CheckOptions(const CoordinatorOptions& options);
// The same for an `adapter_root` that is no directory: a mistyped one would only show when somebody
// registers.
absl::Status CheckAdapterRoot(const std::string& adapter_root);

}  // namespace rootstock
