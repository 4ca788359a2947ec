// The Uploads service.
#pragma once

#include <memory>

#include "common/model/model_spec.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/content/uploads/upload_metrics.h"
#include "coordinator/content/uploads/upload_store.h"
#include "coordinator/engine/engine.h"
#include "coordinator/rpc/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// Thread-safe.
class UploadsService {
 public:
  // All but the model outlive the service's server. Pieces are written on `pool`; a slow client
  // holds no thread of it. Finishing reads and checks as a registration does, on `registrations`.
  UploadsService(UploadStore* uploads, Registry* registry, Engine* engine, ModelSpec model,
                 WorkPool* pool, WorkPool* registrations, UploadMetrics metrics);
  ~UploadsService();
  grpc::Service* service();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace rootstock
