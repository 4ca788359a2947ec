// The two files of a PEFT directory, opened with a stranger's directory in mind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace rootstock {

constexpr char kPeftWeightsFile[] = "adapter_model.safetensors";

// A directory that is held open: its files are of this one, whatever its path comes to mean. Closes
// itself. Thread-safe.
class PeftDirectory {
 public:
  // kInvalidArgument/path_invalid unless it is a directory, kNotFound/path_invalid when there is
  // none. Errors say its last name: where it lies is not a client's to know.
  static absl::StatusOr<PeftDirectory> Open(const std::filesystem::path& dir);
  PeftDirectory(PeftDirectory&& other) noexcept;
  PeftDirectory& operator=(PeftDirectory&&) = delete;
  ~PeftDirectory();

  int fd() const { return fd_; }

 private:
  explicit PeftDirectory(int fd) : fd_(fd) {}

  int fd_;
};

// An open regular file, read by position: it may change or shrink meanwhile without harm. Closes
// itself. Thread-safe.
class SteadyFile {
 public:
  // NAME of DIR, or the file of DIR that NAME is a link to. kInvalidArgument/path_invalid for what
  // is no regular file and for a link to anything else; kNotFound/path_invalid when there is none.
  static absl::StatusOr<SteadyFile> Open(const PeftDirectory& dir, const std::string& name);
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

// adapter_config.json, at most 64 KiB (size_limit). kNotFound/config_invalid when absent.
absl::StatusOr<std::string> ReadPeftConfigFile(const PeftDirectory& dir);

// adapter_model.safetensors. Pickled weights in its place are refused by name.
absl::StatusOr<SteadyFile> OpenPeftWeights(const PeftDirectory& dir);

// Does a file that begins so hold a pickle or a zip archive? Only asked when it can't be
// safetensors: a header's length may begin with the same bytes.
bool LooksPickled(std::span<const uint8_t> prefix);

}  // namespace rootstock
