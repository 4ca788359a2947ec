// The files of an upload on disk: a manifest, NAME.part while pieces come, NAME when it is whole
// and verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/content/uploads/upload.h"

namespace rootstock {

struct UploadManifest {
  std::string tenant;
  std::vector<UploadFile> files;
};
// As a manifest is written. Parsing gives nothing for a text that is none.
std::string FormatManifest(const UploadManifest& manifest);
std::optional<UploadManifest> ParseManifest(const std::string& text);
// Nothing for what this store has not written, or not to its end; an error when that can't be seen
// now: too many open files, say.
absl::StatusOr<std::optional<UploadManifest>> ReadManifest(const std::filesystem::path& dir);
absl::Status WriteManifest(const std::filesystem::path& dir, const UploadManifest& manifest);
// When any of them was written last.
std::filesystem::file_time_type LastUse(const std::filesystem::path& dir,
                                        const std::vector<UploadFile>& files);

std::filesystem::path PartOf(const std::filesystem::path& file);
// How much of a file of `bytes` came. Of one that is not verified at least the last byte is
// missing: who sends that verifies it. One that is whole by its name but not by its size is not
// there.
uint64_t ReceivedOf(const std::filesystem::path& file, uint64_t bytes);
// Makes PartOf(file) the file: on the disk when it returns.
absl::Status CompletePart(int fd, const std::filesystem::path& file);

}  // namespace rootstock
