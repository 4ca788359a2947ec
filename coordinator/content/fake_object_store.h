// An object store in memory that fails as a test tells it to.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "common/base/status.h"
#include "common/objects/object_store.h"

namespace rootstock {

// *Thread-safe.*
class FakeObjectStore : public ObjectStore {
 public:
  // Asked before every "get", "put" and "remove", and before "put's answer"; an error is the
  // answer.
  std::function<absl::Status(const std::string& call)> fails;

  absl::Status Create() override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> Size(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return objects_[key].size();
  }
  absl::Status Get(const std::string& key, uint64_t max_bytes, const Sink& sink) override {
    RETURN_IF_ERROR(Answer("get"));
    std::string bytes;
    {
      const std::lock_guard lock(mutex_);
      const auto it = objects_.find(key);
      if (it == objects_.end()) return Failure(absl::StatusCode::kNotFound);
      bytes = it->second;
    }
    if (bytes.size() > max_bytes) {
      return MakeError(absl::StatusCode::kResourceExhausted, Reason::kSizeLimit, "uri",
                       "s3://bucket/secret-place", "too large");
    }
    return sink(bytes);
  }
  absl::Status Put(const std::string& key, const std::filesystem::path& file) override {
    RETURN_IF_ERROR(Answer("put"));
    std::stringstream bytes;
    bytes << std::ifstream(file).rdbuf();
    const std::lock_guard lock(mutex_);
    objects_[key] = bytes.str();
    return Answer("put's answer");
  }
  absl::Status Remove(const std::string& key) override {
    RETURN_IF_ERROR(Answer("remove"));
    const std::lock_guard lock(mutex_);
    objects_.erase(key);
    return absl::OkStatus();
  }
  void Cancel() override {}

  bool Has(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    return objects_.contains(key);
  }
  static absl::Status Failure(absl::StatusCode code) {
    const bool full = code == absl::StatusCode::kResourceExhausted;
    return MakeError(code, full ? Reason::kNoSpace : Reason::kIoError, "uri",
                     "s3://bucket/secret-place", "at 10.0.0.7");
  }

 private:
  absl::Status Answer(const std::string& call) const {
    return fails ? fails(call) : absl::OkStatus();
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::string> objects_;
};

}  // namespace rootstock
