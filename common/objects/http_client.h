// One HTTP exchange by libcurl.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/objects/object_store.h"

namespace rootstock {

struct HttpRequest {
  std::string method = "GET";  // or HEAD, PUT, DELETE
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  std::filesystem::path body;        // of a PUT
};

struct HttpHead {
  int status = 0;
  std::optional<uint64_t> content_length;
  std::string etag;
  std::optional<Digest> sha256;  // x-amz-checksum-sha256, of the whole object
};

// Http and https only, redirects are answers like others. *Thread-safe.*
class HttpClient {
 public:
  explicit HttpClient(const ObjectStoreOptions& options);

  struct Handlers {
    std::function<absl::Status(const HttpHead&)> head;  // of a 2xx, before its body
    ObjectStore::Sink body;                             // of a 2xx
  };
  struct Answer {
    HttpHead head;
    std::string error_body;  // the beginning of one that is no 2xx
  };
  // Errors: UNAVAILABLE / io_error for the network, / truncated for a body that ended early,
  // DEADLINE_EXCEEDED for a stall or a drip, CANCELLED, or a handler's own. Texts begin with
  // `what`.
  absl::StatusOr<Answer> Do(const HttpRequest& request, const std::string& what,
                            const Handlers& handlers);
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

 private:
  const ObjectStoreOptions options_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace rootstock
