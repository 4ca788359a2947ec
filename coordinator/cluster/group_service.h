// The gRPC services that worker groups use: their stream, and adapter content by digest.
#pragma once

#include <fstream>
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

// Serves Blobs.Fetch. Thread-safe.
class BlobService {
 public:
  // Runs a job on a thread that may block; false when too many wait.
  using Post = std::function<bool(std::function<void()>)>;
  struct Ports {
    // The content of a digest from its first byte; may block. An error is the call's.
    std::function<absl::StatusOr<std::ifstream>(const Digest&)> open;
    // Whether `open` finds it on the disk. Those that are there wait for none that are fetched from
    // elsewhere. Must not block.
    std::function<bool(const Digest&)> is_on_disk;
    Post read, fetch;
    // Hears that the content which `open` gave could not be read to its end, or was other bytes;
    // must not block.
    std::function<void(const Digest&)> doubt;
  };
  explicit BlobService(Ports ports);
  ~BlobService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
