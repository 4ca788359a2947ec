// Content that the registry does not know.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <set>

#include "absl/status/status.h"
#include "common/base/digest.h"

namespace rootstock {

// What a BlobStore's directory holds, on disk or noted as being in an object store.
struct ContentCount {
  size_t contents = 0;
  uint64_t bytes = 0;  // on disk
};
ContentCount CountContent(const std::filesystem::path& blobs);

// Files BLOBS/.unknown/<digest>. A crash between a blob and its name leaves some; an older copy of
// the registry makes all that came later look like that, so they wait for it. *One thread.*
class UnknownBlobs {
 public:
  // Kept for `grace` since they were first found to be unknown.
  UnknownBlobs(std::filesystem::path blobs, std::chrono::hours grace);

  // Those of `keep` go back among the blobs; those whose time is over go.
  absl::Status Open(const std::set<Digest>& keep);
  // Of a blob, unless there is no grace: then it is removed.
  void SetAside(const Digest& digest);
  // That stay.
  const ContentCount& count() const { return count_; }

 private:
  const std::filesystem::path blobs_, aside_;
  const std::chrono::hours grace_;
  ContentCount count_;
};

}  // namespace rootstock
