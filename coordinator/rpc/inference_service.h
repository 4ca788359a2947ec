// The Inference service.
#pragma once

#include <memory>

#include "coordinator/adapters/lazy_adapters.h"
#include "coordinator/engine/engine.h"
#include "coordinator/frontend/frontend.h"
#include "coordinator/rpc/backpressure.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// Where requests for adapters that are not registered yet look first; null: nowhere.
struct LazyModels {
  LazyAdapters* adapters = nullptr;
  WorkPool* pool = nullptr;  // of its own: a slow store holds up nobody else's request
};

// Thread-safe.
class InferenceService {
 public:
  // All outlive the service's server.
  InferenceService(Engine* engine, const Frontend* frontend, WorkPool* pool, StreamMetrics metrics,
                   LazyModels lazy = {});
  ~InferenceService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
