// The two files of a PEFT directory, opened with a stranger's directory in mind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

constexpr char kPeftWeightsFile[] = "adapter_model.safetensors";

// An open regular file, read by position: it may change or shrink meanwhile without harm. Closes
// itself. Thread-safe.
class SteadyFile {
 public:
  // DIR/NAME. kInvalidArgument/path_invalid for what is no regular file or lies outside DIR through
  // a link; kNotFound/path_invalid when there is none.
  static absl::StatusOr<SteadyFile> Open(const std::filesystem::path& dir, const std::string& name);
  SteadyFile(SteadyFile&& other) noexcept;
  SteadyFile& operator=(SteadyFile&&) = delete;
  ~SteadyFile();

  uint64_t size() const { return size_; }
  const std::string& name() const { return name_; }
  // Fills `out` from `offset`. kInvalidArgument/truncated when the file ends before.
  absl::Status ReadAt(uint64_t offset, std::span<uint8_t> out) const;

 private:
  SteadyFile(int fd, uint64_t size, std::string name);

  int fd_;
  uint64_t size_;
  std::string name_;
};

// kInvalidArgument/path_invalid unless DIR is a directory.
absl::Status CheckPeftDirectory(const std::filesystem::path& dir);

// adapter_config.json, at most 64 KiB (size_limit). kNotFound/config_invalid when absent.
absl::StatusOr<std::string> ReadPeftConfigFile(const std::filesystem::path& dir);

// adapter_model.safetensors. Pickled weights in its place are refused by name.
absl::StatusOr<SteadyFile> OpenPeftWeights(const std::filesystem::path& dir);

// Does a file that begins so hold a pickle or a zip archive? Only asked when it can't be
// safetensors: a header's length may begin with the same bytes.
bool LooksPickled(std::span<const uint8_t> prefix);

}  // namespace rootstock
