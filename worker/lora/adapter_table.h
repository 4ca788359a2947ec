// Adapters that are complete on this tp_rank, by digest.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/digest.h"
#include "common/plan/plan.h"
#include "worker/lora/device_adapter.h"

namespace rootstock {

// Owns the adapters; a pointer from Find is valid until that digest's Drop. *Step thread only.*
class AdapterTable {
 public:
  // An adapter whose rows are all in its pages. kAlreadyExists when the digest is there.
  absl::Status Add(const Digest& digest, std::unique_ptr<DeviceAdapter> adapter);
  // Null when absent.
  const DeviceAdapter* Find(const Digest& digest) const;
  // False when absent.
  bool Drop(const Digest& digest);
  // By digest: what an AttachReport lists.
  std::vector<ResidentAdapter> List() const;
  size_t size() const { return adapters_.size(); }

 private:
  absl::flat_hash_map<Digest, std::unique_ptr<DeviceAdapter>> adapters_;
};

}  // namespace rootstock
