// The Aliases service.
#pragma once

#include <memory>

#include "coordinator/adapters/registry.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// Thread-safe.
class AliasesService {
 public:
  // Both outlive the service's server.
  AliasesService(Registry* registry, WorkPool* pool);
  ~AliasesService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
