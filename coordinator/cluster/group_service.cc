#include "coordinator/cluster/group_service.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "coordinator/cluster/group_stream.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {

// Thread-safe.
class GroupService::Service : public v1::Group::CallbackService {
 public:
  Service(GroupDirectory* directory, std::function<void(int)> on_attached)
      : directory_(directory), table_(std::move(on_attached)) {}

  grpc::ServerBidiReactor<v1::GroupMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    auto stream = std::make_shared<GroupStream>(context, directory_, &table_);
    stream->Begin();
    return stream.get();
  }

 private:
  GroupDirectory* const directory_;
  StreamTable table_;
};

GroupService::GroupService(GroupDirectory* directory, std::function<void(int)> on_attached)
    : service_(std::make_unique<Service>(directory, std::move(on_attached))) {}
GroupService::~GroupService() = default;
grpc::Service* GroupService::service() { return service_.get(); }

}  // namespace rootstock
