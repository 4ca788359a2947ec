// Canonical adapter content on disk, by digest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/base/digest.h"

namespace rootstock {

// Files DIR/<digest in hex>. Thread-safe: a file is complete under its name or absent.
class BlobStore {
 public:
  explicit BlobStore(std::filesystem::path directory) : directory_(std::move(directory)) {}
  // Makes the directory; removes unfinished files and blobs that are not in `keep`.
  absl::Status Open(const std::set<Digest>& keep);
  // Durable when it returns. RESOURCE_EXHAUSTED or INTERNAL / io_error leave nothing behind.
  absl::Status Put(const Digest& digest, const std::string& bytes) const;
  void Remove(const Digest& digest) const;
  std::filesystem::path PathOf(const Digest& digest) const;
  bool Holds(const Digest& digest, uint64_t bytes) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace rootstock
