#include "worker/runtime/table_staging.h"

#include <algorithm>
#include <bit>

#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr size_t kUsualBytes = size_t{1} << 20;
constexpr char kPurpose[] = "adapter tables on the host";

}  // namespace

absl::Status TableStaging::Reserve(int count) {
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(DeviceBuffer piece, lane_.AllocateHost(kUsualBytes, kPurpose));
    Lend(std::make_unique<DeviceBuffer>(std::move(piece)));
  }
  return absl::OkStatus();
}

absl::StatusOr<StagedTables> TableStaging::Take(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    const auto it = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& piece) { return piece->bytes() >= bytes; });
    if (it != free_.end()) {
      std::unique_ptr<DeviceBuffer> piece = std::move(*it);
      free_.erase(it);
      return Lend(std::move(piece));
    }
  }
  ASSIGN_OR_RETURN(DeviceBuffer piece,
                   lane_.AllocateHost(std::max(kUsualBytes, std::bit_ceil(bytes)), kPurpose));
  return Lend(std::make_unique<DeviceBuffer>(std::move(piece)));
}

StagedTables TableStaging::Lend(std::unique_ptr<DeviceBuffer> piece) {
  return StagedTables(piece.release(), [this](DeviceBuffer* held) {
    std::lock_guard lock(mutex_);
    free_.emplace_back(held);
  });
}

}  // namespace rootstock
