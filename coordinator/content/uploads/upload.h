// What an upload is: coordinator/content's own words for proto/rootstock/v1/uploads.proto.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/digest.h"

namespace rootstock {

// What an upload consists of: adapter_config.json and adapter_model.safetensors.
struct UploadFile {
  std::string name;
  uint64_t bytes = 0;
  Digest sha256;
  uint64_t received = 0;  // of what the store tells
};

struct UploadState {
  std::string id;  // follows from tenant and files: who begins again goes on
  std::vector<UploadFile> files;
  bool is_complete() const;
};

struct UploadLimits {
  uint64_t max_config_bytes = 64 << 10;
  uint64_t max_weights_bytes = uint64_t{4} << 30;
  // Unfinished uploads, by the bytes that came; those of one tenant, and all.
  uint64_t max_tenant_bytes = uint64_t{8} << 30;
  uint64_t max_bytes = uint64_t{32} << 30;
  size_t max_tenant_uploads = 64;
  size_t max_uploads = 10000;
  std::chrono::hours expires = std::chrono::hours(24);  // without a piece
};

}  // namespace rootstock
