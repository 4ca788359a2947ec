// The Adapters service.
#pragma once

#include <memory>
#include <vector>

#include "common/model/model_spec.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/engine/engine.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// The registry's pins as the engine wants them.
std::vector<AdapterPin> AllPins(const Registry& registry);

// Thread-safe.
class AdaptersService {
 public:
  // All but the model outlive the service's server. Registrations, which read and check whole
  // directories, run on a pool of their own: however slow they are, the other calls go on. So do
  // those by URI, which wait for a store: on `fetches`.
  AdaptersService(Registry* registry, Engine* engine, ModelSpec model, WorkPool* pool,
                  WorkPool* registrations, WorkPool* fetches);
  ~AdaptersService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
