// What an object store may hold of this coordinator's contents.
#pragma once

#include <chrono>
#include <filesystem>
#include <set>

#include "absl/status/statusor.h"
#include "common/base/digest.h"

namespace rootstock {

// One file a content, there before the content is put into the store and until it has been
// removed from it: whatever ends the process, nothing stays in the store that is not known. Empty,
// or a word: condemned, or unknown since the file was written. *Thread-safe.*
class StoreLedger {
 public:
  // `directory` is made by Open.
  explicit StoreLedger(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Of what is marked and not to be kept.
  struct Found {
    std::set<Digest> gone;  // to be removed from the store
    size_t unknown = 0;     // stay: nobody has removed them, and their time is not over
  };

  absl::Status Make();
  // Makes it; marks all of `keep`. What is unknown is kept for `grace` from the first Open on that
  // does not know it.
  absl::StatusOr<Found> Open(const std::set<Digest>& keep, std::chrono::hours grace);
  // Durable when it returns; false when it was marked already.
  absl::StatusOr<bool> Mark(const Digest& digest);
  // It is to be removed, whatever ends the process before it is; as far as the disk takes a note.
  void Condemn(const Digest& digest);
  absl::Status Unmark(const Digest& digest);

 private:
  const std::filesystem::path directory_;
};

}  // namespace rootstock
