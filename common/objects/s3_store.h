// Objects of one bucket of an S3 server.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "common/objects/http_client.h"
#include "common/objects/object_store.h"

namespace rootstock {

// Path-style URLs, SigV4. Attempts that may end otherwise are made again `max_retries` times; a
// body that ended early goes on from there, of the same ETag. *Thread-safe.*
class S3Store : public ObjectStore {
 public:
  S3Store(StoreUri uri, ObjectStoreOptions options);

  absl::StatusOr<uint64_t> Size(const std::string& key) override;
  absl::Status Get(const std::string& key, uint64_t max_bytes, const Sink& sink) override;
  absl::Status Put(const std::string& key, const std::filesystem::path& file) override;
  absl::Status Remove(const std::string& key) override;
  void Cancel() override;

 private:
  // Of a Get over several attempts.
  struct Progress {
    uint64_t done = 0;
    std::string etag;
    std::optional<Digest> said;  // by the store, of the whole object
    Sha256 hash;                 // of what came
  };
  std::string UriOf(const std::string& key) const;
  HttpRequest RequestFor(const std::string& method, const std::string& key) const;
  absl::Status StatusOf(const HttpClient::Answer& answer, const std::string& key) const;
  absl::Status GetOnce(const std::string& key, uint64_t max_bytes, const Sink& sink,
                       Progress& progress);
  // Calls `attempt` until it ends for good.
  absl::Status Retry(const std::function<absl::Status()>& attempt);
  bool Sleep(absl::Duration wait);  // false: cancelled

  const StoreUri uri_;
  const ObjectStoreOptions options_;
  HttpClient http_;
  std::mutex mutex_;
  std::condition_variable cancelled_;
};

}  // namespace rootstock
