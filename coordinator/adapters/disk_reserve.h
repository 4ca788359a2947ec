// Bytes of the registry's disk that its next start may have.
#pragma once

#include <filesystem>
#include <utility>

namespace rootstock {

// A file of 256 KiB. A start is a durable change, and one that finds no room for it ends: on a disk
// that others have filled meanwhile it has these. *One thread.*
class DiskReserve {
 public:
  explicit DiskReserve(std::filesystem::path file) : file_(std::move(file)) {}

  // Takes the bytes, or of a full disk as many as there are, which is logged.
  void Take() const;
  // Gives them back; without any it does nothing.
  void GiveUp() const;

 private:
  const std::filesystem::path file_;
};

}  // namespace rootstock
