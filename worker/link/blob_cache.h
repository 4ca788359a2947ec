// Adapter content on a node, by digest, shared by its ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/digest.h"

namespace rootstock {

// Where content comes from: calls `sink` with its bytes in order. *Thread-safe.*
class BlobSource {
 public:
  using Sink = std::function<absl::Status(const std::string& bytes)>;
  virtual ~BlobSource() = default;
  virtual absl::Status Fetch(const Digest& digest, const Sink& sink) = 0;
  // Fetches that run and those to come end soon, with an error.
  virtual void Cancel() = 0;
};

// Files DIR/<digest>, complete and verified or absent. *Thread-safe, between processes too.*
class BlobCache {
 public:
  explicit BlobCache(std::filesystem::path dir) : dir_(std::move(dir)) {}
  std::filesystem::path PathOf(const Digest& digest) const;

  // Returns when the content is there. A file of other bytes is replaced. digest_mismatch when the
  // source gave other bytes, io_error for the disk.
  absl::Status Ensure(const Digest& digest, BlobSource& source) const;
  // Absent is fine.
  absl::Status Remove(const Digest& digest) const;
  // Removes what processes of this node that are gone left half written. A file of this process'
  // own pid is an earlier process' (a container gives the same pids again): call it before Ensure.
  void SweepTemporaries() const;

 private:
  absl::Status Download(const Digest& digest, BlobSource& source) const;
  const std::filesystem::path dir_;
};

}  // namespace rootstock
