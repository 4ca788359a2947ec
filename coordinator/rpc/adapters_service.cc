#include "coordinator/rpc/adapters_service.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "common/base/status.h"
#include "coordinator/rpc/adapter_message.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/adapters.grpc.pb.h"

namespace rootstock {
namespace {

std::string TenantOf(const std::string& tenant) { return tenant.empty() ? "default" : tenant; }

}  // namespace

// Thread-safe.
class AdaptersService::Service : public v1::Adapters::CallbackService {
 public:
  Service(Registry* registry, Engine* engine, ModelSpec model, WorkPool* pool)
      : registry_(registry), engine_(engine), model_(std::move(model)), pool_(pool) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(
          const AdapterEntry entry,
          registry_->Register(request->name(), request->path(), TenantOf(request->tenant())));
      return Fill(entry, response->mutable_adapter());
    });
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetAdapterRequest* request,
                                v1::Adapter* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const AdapterEntry entry,
                       registry_->Get(request->name(), TenantOf(request->tenant())));
      return Fill(entry, response);
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListAdaptersRequest* request,
                                 v1::ListAdaptersResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const auto entries, registry_->List(TenantOf(request->tenant())));
      for (const AdapterEntry& entry : entries) {
        RETURN_IF_ERROR(Fill(entry, response->add_adapters()));
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context,
                                       const v1::UnregisterRequest* request,
                                       v1::UnregisterResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const UnregisteredAdapter gone,
                       registry_->Unregister(request->name(), TenantOf(request->tenant())));
      if (gone.last_name) engine_->DropAdapter(gone.digest);
      response->set_freed_bytes(gone.freed_bytes);
      return absl::OkStatus();
    });
  }

 private:
  absl::Status Fill(const AdapterEntry& entry, v1::Adapter* out) {
    return FillAdapter(entry, registry_->FindDigest(entry.digest), engine_->Status(), model_, out);
  }

  Registry* const registry_;
  Engine* const engine_;
  const ModelSpec model_;
  WorkPool* const pool_;
};

AdaptersService::AdaptersService(Registry* registry, Engine* engine, ModelSpec model,
                                 WorkPool* pool)
    : service_(std::make_unique<Service>(registry, engine, std::move(model), pool)) {}
AdaptersService::~AdaptersService() = default;
grpc::Service* AdaptersService::service() { return service_.get(); }

}  // namespace rootstock
