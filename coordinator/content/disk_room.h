// What content leaves of a disk to the registry.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace rootstock {

// Bytes that content may take.
using DiskRoom = std::function<uint64_t()>;

// What is free where `directory` lies, less 64 MiB or an eighth of a smaller
// disk: changes of the registry find room there. Without limit where nobody can tell.
DiskRoom RoomBesideTheRegistry(std::filesystem::path directory);

// RESOURCE_EXHAUSTED/no_space when `bytes` don't fit.
absl::Status CheckRoom(const DiskRoom& room, uint64_t bytes, const std::string& field,
                       const std::string& value);

}  // namespace rootstock
