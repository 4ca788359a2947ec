// The files of an upload on disk: NAME.part while pieces come, NAME when it is whole and verified.
#pragma once

#include <cstdint>
#include <filesystem>

namespace rootstock {

std::filesystem::path PartOf(const std::filesystem::path& file);
// How much of a file of `bytes` came. Of one that is not verified at least the last byte is
// missing: who sends that verifies it.
uint64_t ReceivedOf(const std::filesystem::path& file, uint64_t bytes);

}  // namespace rootstock
