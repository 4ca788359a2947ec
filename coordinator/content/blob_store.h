// Canonical adapter content by digest: on disk, and in an object store behind it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/objects/object_store.h"

namespace rootstock {

struct BlobStoreOptions {
  uint64_t max_bytes = 0;  // on disk; 0: as much as there is
  // Holds every blob under blobs/<digest in hex>; the disk is a cache of it then. Nobody else may
  // use it. Null: the disk holds all.
  std::shared_ptr<ObjectStore> remote;
  std::string remote_name;  // another one than before gets what is on disk at Open
};

// Files DIR/<digest>, complete or absent. What was used last goes last when the disk's budget is
// full; readers keep what they have open. *Thread-safe.*
class BlobStore {
 public:
  BlobStore(std::filesystem::path directory, BlobStoreOptions options);
  ~BlobStore();  // waits for a removal from the object store that runs

  // Makes the directory; removes unfinished files and blobs that are not in `keep`. With an object
  // store that is new here, all blobs on disk are put there first.
  absl::Status Open(const std::set<Digest>& keep);
  // Durable when it returns, in the object store too. RESOURCE_EXHAUSTED / quota when the budget
  // has no room and no object store stands behind it, / io_error for a full disk; INTERNAL /
  // io_error; the object store's errors. Each leaves nothing behind.
  absl::Status Put(const Digest& digest, const std::string& bytes);
  // Positioned at its first byte. Fetched from the object store, and verified, when it is not on
  // disk: may take long then. NOT_FOUND; DATA_LOSS / digest_mismatch.
  absl::StatusOr<std::ifstream> Read(const Digest& digest);
  // Never waits for the object store, from which it goes soon.
  void Remove(const Digest& digest);
  // On disk with that size.
  bool Holds(const Digest& digest, uint64_t bytes) const;
  // Neither there nor, as far as anybody knows, in the object store.
  bool IsLost(const Digest& digest, uint64_t bytes) const;
  // Reads and puts that wait for the object store end soon.
  void Cancel();

 private:
  struct Entry {
    uint64_t bytes = 0;
    std::list<Digest>::iterator use;  // in uses_
  };
  std::filesystem::path PathOf(const Digest& digest) const;
  absl::Status Fetch(const Digest& digest);
  absl::Status FillRemote();
  // Under the mutex.
  void Touch(const Digest& digest);
  void Add(const Digest& digest, uint64_t bytes);
  void MakeRoom(const Digest& keep);
  void Drop(const Digest& digest);
  void RemoveFromRemote();

  const std::filesystem::path directory_;
  const BlobStoreOptions options_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Entry> entries_;  // on disk
  std::list<Digest> uses_;                     // least recently used first
  uint64_t bytes_ = 0;
  std::set<Digest> fetching_;
  std::set<Digest> removals_;  // from the object store, to come
  std::optional<Digest> removing_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::thread remover_;
};

}  // namespace rootstock
