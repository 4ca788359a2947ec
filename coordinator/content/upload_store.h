// PEFT directories that clients send piece by piece.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/digest.h"

namespace rootstock {

// What an upload consists of: adapter_config.json and adapter_model.safetensors.
struct UploadFile {
  std::string name;
  uint64_t bytes = 0;
  Digest sha256;
  uint64_t received = 0;  // of what the store tells
};

struct UploadState {
  std::string id;  // follows from tenant and files: who begins again goes on
  std::vector<UploadFile> files;
  bool is_complete() const;
};

struct UploadLimits {
  uint64_t max_config_bytes = 64 << 10;
  uint64_t max_weights_bytes = uint64_t{4} << 30;
  uint64_t max_bytes = uint64_t{16} << 30;              // of all unfinished uploads, as announced
  std::chrono::hours expires = std::chrono::hours(24);  // without a piece
};

// Directories DIR/<id>, a manifest beside the files; they outlive the process. Nothing is allocated
// for what was refused. *Thread-safe.*
class UploadStore {
 public:
  class Writer;

  UploadStore(std::filesystem::path dir, UploadLimits limits);
  ~UploadStore();
  // Makes the directory, forgets what has expired or has no manifest.
  absl::Status Open();

  // Begins an upload, or finds the one of the same tenant and files. Refusals name the file: pickle
  // for .bin and .pt, path_invalid for other names, size_limit, duplicate, quota.
  absl::StatusOr<UploadState> Start(const std::string& tenant, std::vector<UploadFile> files);
  // NOT_FOUND for unknown ids and those of other tenants.
  absl::StatusOr<UploadState> Get(const std::string& tenant, const std::string& id) const;
  // ABORTED while another one writes it.
  absl::StatusOr<std::unique_ptr<Writer>> Write(const std::string& tenant, const std::string& id);
  // Hands the directory, complete and verified, to `use`; forgets the upload when that went well.
  // FAILED_PRECONDITION while bytes are missing.
  absl::Status Finish(const std::string& tenant, const std::string& id,
                      const std::function<absl::Status(const std::filesystem::path&)>& use);
  // Unknown is fine. ABORTED while somebody writes it.
  absl::Status Abort(const std::string& tenant, const std::string& id);

 private:
  // Keeps others away from one upload.
  class Lease {
   public:
    Lease(UploadStore& store, std::string id) : store_(store), id_(std::move(id)) {}
    ~Lease() {
      const std::lock_guard lock(store_.mutex_);
      store_.busy_.erase(id_);
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    UploadStore& store_;
    const std::string id_;
  };

  std::filesystem::path PathOf(const std::string& id) const { return dir_ / id; }
  absl::StatusOr<UploadState> Read(const std::string& tenant, const std::string& id) const;
  absl::Status CheckFiles(const std::vector<UploadFile>& files) const;
  absl::Status Create(const std::string& tenant, const UploadState& state);
  absl::StatusOr<std::unique_ptr<Lease>> Take(const std::string& id);
  void Expire();
  uint64_t Announced() const;

  const std::filesystem::path dir_;
  const UploadLimits limits_;
  mutable std::mutex mutex_;  // of Start and Expire, and of busy_
  std::set<std::string> busy_;
};

// One upload's only writer; others may write when it is gone. *One thread at a time.*
class UploadStore::Writer {
 public:
  ~Writer();
  // `offset` is where the file ends, else FAILED_PRECONDITION tells where that is. size_limit for
  // more than was announced; RESOURCE_EXHAUSTED / io_error when the disk is full; DATA_LOSS /
  // digest_mismatch at its last byte forgets the file's bytes, so that they can be sent again.
  absl::Status Append(const std::string& file, uint64_t offset, std::string_view bytes);
  const UploadState& state() const { return state_; }

 private:
  friend class UploadStore;
  struct Open;  // the file that is being written
  Writer(std::unique_ptr<Lease> lease, std::filesystem::path dir, UploadState state);
  absl::Status OpenFile(const UploadFile& file);
  absl::Status Complete(UploadFile& file);

  const std::unique_ptr<Lease> lease_;
  const std::filesystem::path dir_;
  UploadState state_;
  std::unique_ptr<Open> open_;
};

}  // namespace rootstock
