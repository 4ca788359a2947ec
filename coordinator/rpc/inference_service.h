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

// Thread-safe.
class InferenceService {
 public:
  // All outlive the service's server. lazy: where requests for adapters that are not registered yet
  // look first; null: nowhere.
  InferenceService(Engine* engine, const Frontend* frontend, WorkPool* pool, StreamMetrics metrics,
                   LazyAdapters* lazy = nullptr);
  ~InferenceService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
