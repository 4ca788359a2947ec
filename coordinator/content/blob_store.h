// Canonical adapter content by digest: on disk, and in an object store behind it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/objects/object_store.h"
#include "coordinator/content/blob_file.h"
#include "coordinator/content/disk_room.h"
#include "coordinator/content/removal_queue.h"
#include "coordinator/content/store_ledger.h"
#include "coordinator/content/unknown_blobs.h"

namespace rootstock {

inline constexpr auto kUnknownGrace = std::chrono::hours(7 * 24);

struct BlobStoreOptions {
  uint64_t max_bytes = 0;  // on disk; 0: as much as there is
  // Holds every blob under blobs/<digest in hex>; the disk is a cache of it then. Nobody else may
  // use it. Null: the disk holds all.
  std::shared_ptr<ObjectStore> remote;
  std::string remote_name;  // another one than before gets what is on disk at Open
  std::chrono::milliseconds removal_retry = std::chrono::seconds(30);
  // How long Open's unknown contents are kept, for a registry that knows them; 0: not at all.
  std::chrono::hours unknown_grace = kUnknownGrace;
  DiskRoom room = {};  // of the disk; empty: RoomBesideTheRegistry
};

// Files DIR/<digest>, complete or absent. What was used last goes last when the disk's budget is
// full; readers keep what they have open. *Thread-safe.*
class BlobStore {
 public:
  BlobStore(std::filesystem::path directory, BlobStoreOptions options);
  // Waits for removals from the disk, and for one from the object store that runs; Open makes up
  // for those to come.
  ~BlobStore();

  // Makes the directory; removes unfinished files. Blobs that are not in `keep` are unknown: set
  // aside and told, and removed, from the object store too, at an Open when their time is over.
  // With an object store that is new here, all blobs on disk are put there first.
  absl::Status Open(const std::set<Digest>& keep);
  // Durable when it returns, in the object store too. RESOURCE_EXHAUSTED / quota when the budget
  // has no room and no object store stands behind it, / no_space for a full disk, or one
  // that would have no room left for the registry; INTERNAL /
  // io_error; WithoutUri's of the object store. Each is logged and leaves nothing behind.
  absl::Status Put(const Digest& digest, const std::string& bytes);
  // Positioned at its first byte. What the disk lacks or holds spoilt is fetched from the object
  // store and verified: may take long then. Of an object of more than the content's `bytes` none
  // comes to the disk. NOT_FOUND; DATA_LOSS / digest_mismatch; UNAVAILABLE / io_error; WithoutUri's
  // of the object store.
  absl::StatusOr<std::ifstream> Read(const Digest& digest, uint64_t bytes);
  // What Read gave could not be read to its end, or was other bytes: the next Read verifies the
  // file anew. Never waits.
  void Doubt(const Digest& digest);
  // Never waits, neither for the disk nor for the object store, from which it goes soon.
  void Remove(const Digest& digest);
  // Waits until what was removed so far is off the disk.
  void AwaitRemovals() { unlinks_.Drain(); }
  // None of these waits for a disk. `Holds`: with that size.
  bool IsOnDisk(const Digest& digest) const;
  bool Holds(const Digest& digest, uint64_t bytes) const;
  // Neither there nor, as far as anybody knows, in the object store.
  bool IsLost(const Digest& digest, uint64_t bytes) const;
  // Reads and puts that wait for the object store end soon.
  void Cancel();

 private:
  struct Entry {
    uint64_t bytes = 0;
    std::list<Digest>::iterator use;    // in uses_
    std::optional<FileStamp> verified;  // of the file whose digest was right
    bool is_bad = false;                // the digest was wrong, and there is no other copy
    uint64_t number = 0;                // of all entries ever
  };
  std::filesystem::path PathOf(const Digest& digest) const;
  // Of those that are kept, oldest first. Sets the unknown ones aside.
  absl::Status FindBlobs(const std::set<Digest>& keep, UnknownBlobs& unknown);
  void TellUnknown(const ContentCount& on_disk, size_t in_store) const;
  absl::Status FillRemote();
  absl::Status CheckBudget(const Digest& digest, uint64_t bytes) const;
  // On the disk, for a content that is worked on alone: what the object store holds too goes for
  // it, oldest first. RESOURCE_EXHAUSTED / no_space.
  absl::Status MakeRoom(const Digest& digest, uint64_t bytes);
  absl::Status PutRemote(const Digest& digest, bool was_to_go);
  absl::Status RemoveRemote(const Digest& digest);
  // Off the disk; what was removed is noted in the ledger first.
  absl::Status TakeOff(const Digest& digest);
  // Takes a file that no entry stands for off the disk.
  void Undo(const Digest& digest);
  // Runs `work` when nobody else works on the content.
  absl::Status Alone(const Digest& digest, const std::function<absl::Status()>& work);
  absl::Status Fetch(const Digest& digest, uint64_t bytes);
  absl::Status Verify(const Digest& digest, uint64_t number);
  bool IsVerified(const Digest& digest, uint64_t number,
                  const std::optional<FileStamp>& stamp) const;
  // Takes the mutex: a whole file of right content is on disk.
  void Stored(const Digest& digest, uint64_t bytes);

  // Under the mutex; none of them touches a disk.
  Entry& Add(const Digest& digest, uint64_t bytes);
  void Drop(const Digest& digest);
  // Takes what was used least recently off the disk; nothing that somebody works on: its file may
  // be on its way to the object store.
  bool DropOldest();
  void Touch(const Entry& entry) { uses_.splice(uses_.end(), uses_, entry.use); }

  const std::filesystem::path directory_;
  const BlobStoreOptions options_;
  const DiskRoom room_;
  StoreLedger ledger_;
  mutable std::mutex mutex_;
  std::unordered_map<Digest, Entry> entries_;  // on disk
  std::list<Digest> uses_;                     // least recently used first
  uint64_t bytes_ = 0;
  uint64_t next_number_ = 0;
  std::set<Digest> busy_;     // somebody works on it
  std::set<Digest> removed_;  // not noted in the ledger yet
  std::set<Digest> lost_;     // the object store has not got it, or other bytes
  std::condition_variable changed_;
  RemovalQueue unlinks_;  // these two end first: their threads use all of the above
  std::unique_ptr<RemovalQueue> removals_;  // from the object store
};

}  // namespace rootstock
