// Where adapters are kept beside the coordinator's own disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rootstock {

// file:///DIRECTORY or s3://BUCKET[/PREFIX].
struct StoreUri {
  enum class Kind { kFile, kS3 };
  Kind kind = Kind::kFile;
  std::string bucket;  // s3 only
  std::string prefix;  // s3: keys' prefix without slashes at its ends; file: absolute directory

  std::string ToString() const;
};
// INVALID_ARGUMENT / path_invalid names the URI: other schemes, hosts in file URIs, "..", empty
// buckets, characters that no bucket has.
absl::StatusOr<StoreUri> ParseStoreUri(std::string_view uri);

struct ObjectStoreOptions {
  std::string endpoint;  // http://HOST:PORT of an S3 server; empty: the region's of AWS
  std::string region = "us-east-1";
  std::string access_key, secret_key, session_token;  // no access key: requests are not signed
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration stall_timeout = absl::Seconds(10);  // without a byte
  // A transfer that goes on moves so many bytes in each such time; else a store that drips would
  // hold its thread for ever.
  uint64_t least_bytes = uint64_t{256} << 10;
  absl::Duration least_bytes_within = absl::Seconds(15);
  absl::Duration total_timeout = absl::Hours(1);  // of a try; nothing is tried again after it
  int max_retries = 3;
  absl::Duration first_retry = absl::Milliseconds(100);  // doubled each time, with jitter

  // AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
  // AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
  static ObjectStoreOptions FromEnvironment();
};

// Keys are relative, parts joined by '/', none of them "", "." or "..". Errors: NOT_FOUND, the
// store is there and has no such object; PERMISSION_DENIED; FAILED_PRECONDITION, no such bucket or
// one elsewhere; INVALID_ARGUMENT for a key; RESOURCE_EXHAUSTED, / size_limit or a full store's
// no_space; DATA_LOSS / truncated, changed while it was read, / digest_mismatch, not of the
// checksum that the store has (S3); UNAVAILABLE / io_error or truncated, tried again already;
// DEADLINE_EXCEEDED for a stall or a drip, likewise; CANCELLED. Each names the object's URI in the
// field "uri", never a secret. *Thread-safe.*
class ObjectStore {
 public:
  // With the object's bytes in order; an error of it ends the Get with that error.
  using Sink = std::function<absl::Status(std::string_view bytes)>;

  virtual ~ObjectStore() = default;
  // Makes the place itself, once, for a store that is new: a directory. Buckets are their owners'.
  virtual absl::Status Create() { return absl::OkStatus(); }
  virtual absl::StatusOr<uint64_t> Size(const std::string& key) = 0;
  // Of more than `max_bytes` nothing reaches the sink when the store tells the size beforehand.
  virtual absl::Status Get(const std::string& key, uint64_t max_bytes, const Sink& sink) = 0;
  // Whole or not at all; durable when it returns. The file must not change meanwhile.
  virtual absl::Status Put(const std::string& key, const std::filesystem::path& file) = 0;
  // Absent is fine.
  virtual absl::Status Remove(const std::string& key) = 0;
  // Calls that run and those to come end soon, with CANCELLED.
  virtual void Cancel() = 0;
};

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const StoreUri& uri,
                                                             const ObjectStoreOptions& options);

// INVALID_ARGUMENT / path_invalid.
absl::Status CheckObjectKey(const std::string& key);

}  // namespace rootstock
