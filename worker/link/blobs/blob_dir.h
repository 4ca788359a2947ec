// What lies in the directory of a node's disk tier, which other processes change meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/base/digest.h"

namespace rootstock {

struct DirectoryFile {
  std::filesystem::path path;
  uint64_t bytes = 0;
  std::filesystem::file_time_type used;
};

// None when it can't be read.
std::vector<DirectoryFile> FilesOf(const std::filesystem::path& dir);
uint64_t TotalBytes(const std::vector<DirectoryFile>& files);
// Of what is free where `dir` is, its files included; makes it where it is not there. 0 on errors.
uint64_t HalfOfTheDisk(const std::filesystem::path& dir);
// Another at each call, of this process.
std::filesystem::path TemporaryIn(const std::filesystem::path& dir, const Digest& digest);
// Temporaries that nobody holds: their writers are gone, whatever machine or container gave them a
// pid.
void RemoveAbandoned(const std::filesystem::path& dir);

}  // namespace rootstock
