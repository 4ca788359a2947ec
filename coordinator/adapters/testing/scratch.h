// Directories for tests that write much.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace rootstock {

// Fresh, in memory where the system has such a place; removed at the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name) {
    const std::filesystem::path memory = "/dev/shm";
    const bool there = access(memory.c_str(), W_OK) == 0;
    path_ = (there ? memory : std::filesystem::path(testing::TempDir())) /
            ("rootstock-" + name + "-" + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace rootstock
