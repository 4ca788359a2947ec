#include "coordinator/content/disk_room.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostReserved = uint64_t{64} << 20;
constexpr uint64_t kReservedPart = 8;

}  // namespace

DiskRoom RoomBesideTheRegistry(fs::path directory) {
  return [directory = std::move(directory)]() -> uint64_t {
    std::error_code error;
    const fs::space_info space = fs::space(directory, error);
    if (error) return UINT64_MAX;
    const uint64_t reserved = std::min<uint64_t>(kMostReserved, space.capacity / kReservedPart);
    return space.available > reserved ? space.available - reserved : 0;
  };
}

absl::Status CheckRoom(const DiskRoom& room, uint64_t bytes, const std::string& field,
                       const std::string& value) {
  const uint64_t free = room();
  if (bytes <= free) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoSpace, field, value,
                   absl::StrCat("No space left on device for its ", bytes, " bytes: ", free,
                                " are free beside what is left to the registry"));
}

}  // namespace rootstock
