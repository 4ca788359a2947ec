// lora-worker's flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/flags/flags.h"

namespace rootstock {

struct WorkerOptions {
  std::string coordinator;
  std::string model;
  std::string device = "auto";
  std::string group = "group-0";
  std::string dtype = "auto";
  std::string load_format = "auto";
  uint32_t num_pages = 0;
  uint32_t page_tokens = 0;
  std::string object_uri;
  std::string cache_dir;
  int64_t host_cache_bytes = -1;
  int64_t disk_cache_bytes = 0;
  int64_t metrics_port = 9500;
  std::string port_file;
  std::string log_level = "info";
  uint32_t threads = 0;
  uint32_t step_timeout = 3;
};

// Rows that fill `options`, which is borrowed.
std::vector<FlagSpec> WorkerFlags(WorkerOptions& options);

// ${ROOTSTOCK_CACHE}, or $HOME/.cache/rootstock.
std::string DefaultCacheDir();

}  // namespace rootstock
