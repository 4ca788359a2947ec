// Host memory from which row tables of adapters are copied to the device.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/device/copy_lane.h"

namespace rootstock {

// One piece of it; must stay until its copy has run. Goes back to the staging when it is destroyed.
using StagedTables = std::shared_ptr<DeviceBuffer>;

// Pieces are used again. Outlived by none of its pieces. *Thread-safe.*
class TableStaging {
 public:
  explicit TableStaging(CopyLane& lane) : lane_(lane) {}
  // `count` pieces of the usual size are there from now on.
  absl::Status Reserve(int count);
  // At least `bytes`. RESOURCE_EXHAUSTED/no_memory.
  absl::StatusOr<StagedTables> Take(size_t bytes);

 private:
  StagedTables Lend(std::unique_ptr<DeviceBuffer> piece);

  CopyLane& lane_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<DeviceBuffer>> free_;
};

}  // namespace rootstock
