// Objects as files under one directory.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>

#include "common/objects/object_store.h"

namespace rootstock {

// A key is a path under the directory; what leads out of it through a symlink is path_invalid.
// *Thread-safe, between processes too*: a file is complete under its name or absent.
class FileStore : public ObjectStore {
 public:
  explicit FileStore(StoreUri uri) : uri_(std::move(uri)), root_(uri_.prefix) {}

  absl::Status Create() override;
  absl::StatusOr<uint64_t> Size(const std::string& key) override;
  absl::Status Get(const std::string& key, uint64_t max_bytes, const Sink& sink) override;
  absl::Status Put(const std::string& key, const std::filesystem::path& file) override;
  absl::Status Remove(const std::string& key) override;
  void Cancel() override { cancelled_ = true; }

 private:
  std::string UriOf(const std::string& key) const;
  absl::Status Failed(const std::string& key, int error) const;
  // Of the directory itself: UNAVAILABLE when it is not there, which says nothing of any object.
  absl::StatusOr<std::filesystem::path> Root() const;
  // The real path of an object that is there.
  absl::StatusOr<std::filesystem::path> Find(const std::string& key) const;
  // Makes the folder of a key, inside the store; the last one that was there already.
  absl::StatusOr<std::filesystem::path> MakeFolder(const std::string& key) const;
  absl::Status Stream(const std::string& key, int fd, uint64_t bytes, const Sink& sink) const;

  const StoreUri uri_;
  const std::filesystem::path root_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace rootstock
