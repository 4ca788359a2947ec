// PEFT directories in object stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/objects/object_store.h"
#include "coordinator/content/disk_room.h"

namespace rootstock {

// What a caller has named, for errors.
struct AskedFor {
  std::string field, value;
};

struct AdapterSourceOptions {
  std::vector<StoreUri> allowed;  // what clients may name lies under one of these
  std::vector<StoreUri> own;      // what the coordinator looks for by itself, whoever asks
  ObjectStoreOptions store;
  uint64_t max_weights_bytes = uint64_t{4} << 30;
  DiskRoom room = {};  // of the scratch's disk; empty: RoomBesideTheRegistry
};

// Copies a directory's two files into a private one, where nobody changes them while they are read.
// *Thread-safe.*
class AdapterSources {
 public:
  using Use = std::function<absl::Status(const std::filesystem::path& directory)>;

  // `scratch` is made, and emptied: nobody else uses it.
  static absl::StatusOr<std::unique_ptr<AdapterSources>> Open(std::filesystem::path scratch,
                                                              AdapterSourceOptions options);

  // Whether a client's path names an object store at all.
  static bool IsUri(const std::string& path);

  // Hands the fetched copy to `use`, then removes it. INVALID_ARGUMENT / path_invalid for what is
  // not under an allowed URI, without a look at it; / pickle where only pickled weights lie;
  // NOT_FOUND / path_invalid where the store is there and has no adapter; / size_limit;
  // RESOURCE_EXHAUSTED / no_space when the disk has no room for it beside the registry's; else the
  // store's errors.
  absl::Status Fetch(const std::string& uri, const Use& use) {
    absl::Status store;
    return FetchFrom(allowed_, uri, {"path", uri}, use, store);
  }
  // The same for a URI that the coordinator has made, under one of its own. Errors are for clients
  // who have named a model: they don't say where the store is (WithoutUri), UNAVAILABLE when it
  // gives no answer.
  absl::Status FetchOwn(const std::string& uri, const Use& use);
  // Fetches that run and those to come end soon, with CANCELLED.
  void Cancel();

 private:
  struct Root {
    StoreUri uri;
    std::unique_ptr<ObjectStore> store;
  };
  AdapterSources(std::filesystem::path scratch, uint64_t max_weights_bytes, DiskRoom room)
      : scratch_(std::move(scratch)),
        max_weights_bytes_(max_weights_bytes),
        room_(room ? std::move(room) : RoomBesideTheRegistry(scratch_)) {}
  // `store`: what came of the copying alone.
  absl::Status FetchFrom(const std::vector<Root>& roots, const std::string& uri,
                         const AskedFor& asked, const Use& use, absl::Status& store);
  // The room is looked at before the first byte where the store tells the size, and again as bytes
  // come.
  absl::Status Copy(ObjectStore& store, const std::string& key, uint64_t max_bytes,
                    const AskedFor& asked, const std::filesystem::path& file) const;
  absl::Status FetchFiles(const Root& root, const std::string& key, const AskedFor& asked,
                          const std::filesystem::path& directory) const;

  const std::filesystem::path scratch_;
  const uint64_t max_weights_bytes_;
  const DiskRoom room_;
  std::vector<Root> allowed_, own_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace rootstock
