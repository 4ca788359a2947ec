// What an object store may hold of this coordinator's contents.
#pragma once

#include <filesystem>
#include <set>

#include "absl/status/statusor.h"
#include "common/base/digest.h"

namespace rootstock {

// One empty file a content, there before the content is put into the store and until it has been
// removed from it: whatever ends the process, nothing stays in the store that is not known.
// *Thread-safe.*
class StoreLedger {
 public:
  // `directory` is made by Open.
  explicit StoreLedger(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Marks all of `keep`. What is marked and not kept is to be removed from the store.
  absl::StatusOr<std::set<Digest>> Open(const std::set<Digest>& keep);
  // Durable when it returns; false when it was marked already.
  absl::StatusOr<bool> Mark(const Digest& digest);
  absl::Status Unmark(const Digest& digest);

 private:
  const std::filesystem::path directory_;
};

}  // namespace rootstock
