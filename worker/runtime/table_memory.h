// Device memory of adapters' row tables.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/copy_lane.h"

namespace rootstock {

// Cut from chunks that are kept, so that a load takes nothing of the device and gives nothing back
// to it: both take locks of the driver's. A piece is free for the next load at once, so it may go
// only when no step and no copy names it any more. Pieces may outlive this. *Thread-safe.*
class TableMemory {
 public:
  static constexpr size_t kChunkBytes = size_t{8} << 20;

  explicit TableMemory(CopyLane& lane) : lane_(lane) {}
  // Makes the next chunk once less than half of the last is left. Not for the step thread.
  absl::Status Refill();
  // `bytes`, on 256 bytes. RESOURCE_EXHAUSTED/no_memory.
  absl::StatusOr<std::shared_ptr<std::byte>> Take(size_t bytes);

 private:
  struct Pieces {
    std::mutex mutex;
    std::vector<DeviceBuffer> chunks;
    std::byte* next = nullptr;  // of the last chunk
    size_t left = 0;
    std::multimap<size_t, std::byte*> free;  // by size
  };
  absl::Status AddChunk(size_t bytes);
  // With the mutex held: null when a new chunk is needed.
  std::byte* Cut(size_t bytes, size_t* got);

  CopyLane& lane_;
  const std::shared_ptr<Pieces> pieces_ = std::make_shared<Pieces>();
};

}  // namespace rootstock
