// The gRPC services that worker groups use: their stream, and adapter content by digest.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "coordinator/cluster/group_link.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// Serves Group.Attach. Of each group at most one stream counts: a newer one that the directory
// accepts ends the older, whose listener hears OnLost first. Thread-safe.
class GroupService {
 public:
  // `directory` outlives the service's server. `on_attached` hears the number of groups attached
  // whenever it changes, on transport threads; it must not block.
  GroupService(GroupDirectory* directory, std::function<void(int)> on_attached);
  ~GroupService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

// Serves Blobs.Fetch from files. Thread-safe.
class BlobService {
 public:
  // Where the content of a digest lies; an error is the call's.
  using PathOf = std::function<absl::StatusOr<std::filesystem::path>(const Digest&)>;
  explicit BlobService(PathOf path_of);
  ~BlobService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
