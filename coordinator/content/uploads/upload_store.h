// PEFT directories that clients send piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/content/disk_room.h"
#include "coordinator/content/uploads/upload.h"
#include "coordinator/content/uploads/upload_index.h"

namespace rootstock {

// Directories DIR/<id>, a manifest beside the files; they outlive the process. Nothing is allocated
// for what was refused. *Thread-safe.*
class UploadStore {
 public:
  class Writer;

  using Clock = std::function<UploadIndex::Time()>;

  UploadStore(std::filesystem::path dir, UploadLimits limits,
              Clock clock = UploadIndex::Time::clock::now, DiskRoom room = {});
  ~UploadStore();
  // Makes the directory and learns what lies there; forgets what has expired or has no manifest.
  absl::Status Open();

  // Begins an upload, or finds the one of the same tenant and files. Refusals name the file: pickle
  // for .bin and .pt, path_invalid for other names, size_limit, duplicate, quota, no_space
  // when the disk has no room for what is announced. ABORTED while it is being removed.
  absl::StatusOr<UploadState> Start(const std::string& tenant, std::vector<UploadFile> files);
  // NOT_FOUND for unknown ids and those of other tenants.
  absl::StatusOr<UploadState> Get(const std::string& tenant, const std::string& id) const;
  // ABORTED while another one writes it.
  absl::StatusOr<std::unique_ptr<Writer>> Write(const std::string& tenant, const std::string& id);
  // Hands the directory, complete and verified, to `use`; forgets the upload when that went well or
  // refused its content (INVALID_ARGUMENT for another reason than invalid_argument). After other
  // errors it can be finished again, under another name say. FAILED_PRECONDITION while bytes are
  // missing.
  absl::Status Finish(const std::string& tenant, const std::string& id,
                      const std::function<absl::Status(const std::filesystem::path&)>& use);
  // Unknown is fine. ABORTED while somebody writes it.
  absl::Status Abort(const std::string& tenant, const std::string& id);

 private:
  // Keeps others away from one upload, and counts what comes of it.
  class Lease;

  std::filesystem::path PathOf(const std::string& id) const { return dir_ / id; }
  void Learn(const std::filesystem::path& dir);
  absl::Status CheckFiles(const std::vector<UploadFile>& files) const;
  // The upload that is there already, or a place for it that is this caller's.
  absl::StatusOr<std::optional<UploadState>> FindOrAdd(const std::string& tenant,
                                                       const UploadState& state);
  absl::Status CheckSpace(const UploadState& state) const;
  absl::Status Create(const std::string& tenant, const UploadState& state);
  absl::StatusOr<std::unique_ptr<Lease>> Take(const std::string& tenant, const std::string& id);
  void Expire();
  // Of one that is this caller's.
  void Drop(const std::string& id);

  const std::filesystem::path dir_;
  const UploadLimits limits_;
  const Clock clock_;
  const DiskRoom room_;
  mutable std::mutex mutex_;  // no file is touched under it
  UploadIndex index_;
};

class UploadStore::Lease {
 public:
  Lease(UploadStore& store, UploadState state) : store_(store), state_(std::move(state)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // As it was when the lease began.
  const UploadState& state() const { return state_; }
  absl::Status Take(const std::string& file, uint64_t bytes);
  void GiveBack(const std::string& file, uint64_t bytes);
  absl::Status CheckSpace(const std::string& file, uint64_t bytes) const {
    return CheckRoom(store_.room_, bytes, "file", file);
  }
  // Forgets the upload; the last call.
  void Drop();

 private:
  UploadStore& store_;
  const UploadState state_;
  bool is_gone_ = false;
};

// One upload's only writer; others may write when it is gone. *One thread at a time.*
class UploadStore::Writer {
 public:
  ~Writer();
  // `offset` is where the file ends, else FAILED_PRECONDITION tells where that is. size_limit for
  // more than was announced; RESOURCE_EXHAUSTED / quota, / no_space when the disk is full or
  // has no room beside the registry's. A write that fails forgets the file's bytes too.
  // DATA_LOSS / digest_mismatch at its last byte forgets the file's bytes, so that they can be sent
  // again.
  absl::Status Append(const std::string& file, uint64_t offset, std::string_view bytes);
  const UploadState& state() const { return state_; }

 private:
  friend class UploadStore;
  struct Open;  // the file that is being written
  Writer(std::unique_ptr<Lease> lease, std::filesystem::path dir);
  absl::Status OpenFile(const UploadFile& file);
  absl::Status WriteBytes(UploadFile& file, std::string_view bytes);
  absl::Status Complete(UploadFile& file);
  absl::Status Forget(UploadFile& file, absl::Status why);

  const std::unique_ptr<Lease> lease_;
  const std::filesystem::path dir_;
  UploadState state_;
  std::unique_ptr<Open> open_;
};

}  // namespace rootstock
