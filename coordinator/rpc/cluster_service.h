// The Cluster service.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/engine/engine.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// What Status says beside the engine's own figures.
struct ClusterFacts {
  std::string version;
  std::string served_model;
  uint64_t incarnation = 0;
  std::string metrics_address;
  std::function<size_t()> num_adapters;  // registered names
};

// Thread-safe.
class ClusterService {
 public:
  // Engine and pool outlive the service's server.
  ClusterService(ClusterFacts facts, Engine* engine, WorkPool* pool);
  ~ClusterService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
