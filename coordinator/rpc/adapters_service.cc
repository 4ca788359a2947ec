#include "coordinator/rpc/adapters_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/content/adapter_sources.h"
#include "coordinator/rpc/adapter_message.h"
#include "coordinator/rpc/page.h"
#include "coordinator/rpc/pending_call.h"
#include "coordinator/rpc/reclaim.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/adapters.grpc.pb.h"

namespace rootstock {
namespace {

// With many groups a page ends earlier: a message is at most 4 MB at clients that set nothing.
constexpr size_t kMaxPageBytes = 2 << 20;

template <typename Response>
void FillGroups(const UnloadedBytes& freed, Response* out) {
  out->set_device_bytes(freed.device);
  out->set_host_bytes(freed.host);
  out->set_disk_bytes(freed.disk);
}

// What a client would not expect of a pin that was accepted; empty: nothing.
std::string PinNotice(const AdapterEntry& entry, const std::string& group,
                      const EngineStatus& status) {
  if (group.empty()) return "";
  if (std::find(entry.pins.begin(), entry.pins.end(), "") != entry.pins.end()) {
    return "it is pinned on all groups";
  }
  const bool known = std::any_of(status.groups.begin(), status.groups.end(),
                                 [&](const GroupStatus& g) { return g.info.name == group; });
  if (known) return "";
  return absl::StrCat("no group '", group, "' is known; the pin counts from when one attaches");
}

}  // namespace

std::vector<AdapterPin> AllPins(const Registry& registry) {
  std::vector<AdapterPin> out;
  for (const PinnedContent& pin : registry.Pins()) out.push_back({pin.digest, pin.group});
  return out;
}

// Thread-safe.
class AdaptersService::Service : public v1::Adapters::CallbackService {
 public:
  Service(Registry* registry, Engine* engine, ModelSpec model, WorkPool* pool,
          WorkPool* registrations, WorkPool* fetches)
      : registry_(registry),
        engine_(engine),
        model_(std::move(model)),
        pool_(pool),
        registrations_(registrations),
        fetches_(fetches) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override {
    WorkPool* const pool = AdapterSources::IsUri(request->path()) ? fetches_ : registrations_;
    return RunUnary(context, pool, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const AdapterEntry entry,
                       registry_->Register(request->name(), request->path(),
                                           TenantOf(request->tenant()), request->new_version()));
      return Fill(entry, response->mutable_adapter());
    });
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetAdapterRequest* request,
                                v1::Adapter* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(
          const AdapterEntry entry,
          registry_->Get(request->name(), TenantOf(request->tenant()), request->version()));
      return Fill(entry, response);
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListAdaptersRequest* request,
                                 v1::ListAdaptersResponse* response) override {
    return RunUnary(context, pool_,
                    [this, request, response] { return ListPage(*request, response); });
  }

  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context,
                                       const v1::UnregisterRequest* request,
                                       v1::UnregisterResponse* response) override {
    return RunLater(context, [this, request, response](const Pending& call) -> absl::Status {
      ASSIGN_OR_RETURN(
          const std::vector<RetiredVersion> gone,
          registry_->Unregister(request->name(), TenantOf(request->tenant()), request->version()));
      TellPins();
      registry_->AwaitRemovals();  // the answer says that the blob is gone
      Reclaim(gone, registry_, engine_, [call, response](const ReclaimedBytes& freed) {
        call->Answer(absl::OkStatus(), [&] {
          response->set_freed_bytes(freed.blobs);
          FillGroups(freed.groups, response);
        });
      });
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const v1::UnloadRequest* request,
                                   v1::UnloadResponse* response) override {
    return RunLater(context, [this, request, response](const Pending& call) -> absl::Status {
      ASSIGN_OR_RETURN(
          const std::vector<Digest> digests,
          registry_->Unloadable(request->name(), TenantOf(request->tenant()), request->version()));
      rootstock::Unload(digests, engine_, [call, response](const ReclaimedBytes& freed) {
        call->Answer(absl::OkStatus(), [&] { FillGroups(freed.groups, response); });
      });
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context, const v1::PinRequest* request,
                                v1::PinResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      const std::lock_guard lock(pins_mutex_);
      const std::string tenant = TenantOf(request->tenant());
      ASSIGN_OR_RETURN(const AdapterEntry found,
                       registry_->Get(request->name(), tenant, request->version()));
      std::vector<AdapterPin> pins = AllPins(*registry_);
      pins.push_back({found.digest, request->group()});
      RETURN_IF_ERROR(engine_->CheckPins(pins));
      const auto pinned = registry_->Pin(request->name(), tenant, found.version, request->group());
      RETURN_IF_ERROR(FillPins(pinned, response));
      response->set_notice(PinNotice(*pinned, request->group(), engine_->Status()));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Unpin(grpc::CallbackServerContext* context,
                                  const v1::PinRequest* request,
                                  v1::PinResponse* response) override {
    return RunUnary(context, pool_, [this, request, response] {
      const std::lock_guard lock(pins_mutex_);
      return FillPins(registry_->Unpin(request->name(), TenantOf(request->tenant()),
                                       request->version(), request->group()),
                      response);
    });
  }

 private:
  using Pending = std::shared_ptr<PendingCall>;

  // Runs `begin` on the pool; what it began answers the call, unless it fails.
  grpc::ServerUnaryReactor* RunLater(grpc::CallbackServerContext* context,
                                     std::function<absl::Status(const Pending&)> begin) {
    Pending call = PendingCall::Start(context);
    const bool taken = pool_->Post([call, begin = std::move(begin)] {
      if (const absl::Status status = begin(call); !status.ok()) call->Answer(status);
    });
    if (!taken) call->Answer(TooBusy(*pool_));
    return call.get();
  }

  void TellPins() {
    const std::lock_guard lock(pins_mutex_);
    engine_->SetPins(AllPins(*registry_));
  }

  absl::Status FillPins(const absl::StatusOr<AdapterEntry>& entry, v1::PinResponse* out) {
    if (!entry.ok()) return entry.status();
    engine_->SetPins(AllPins(*registry_));
    out->set_version(entry->version);
    for (const std::string& group : entry->pins) out->add_pins(ShownPin(group));
    return absl::OkStatus();
  }

  absl::Status Fill(const AdapterEntry& entry, v1::Adapter* out) {
    return AdapterMessages(engine_->Status(), model_)
        .Fill(entry, registry_->FindDigest(entry.digest), out);
  }

  absl::Status ListPage(const v1::ListAdaptersRequest& request, v1::ListAdaptersResponse* out) {
    const std::string tenant = TenantOf(request.tenant());
    ASSIGN_OR_RETURN(const size_t size, PageSize(request.page_size()));
    ASSIGN_OR_RETURN(const std::string after, ParsePageToken(request.page_token(), tenant));
    const std::vector<AdapterEntry> entries =
        registry_->List(tenant, ParseAdapterRef(after).value_or(AdapterRef{after}), size + 1);
    const AdapterMessages messages(engine_->Status(), model_);
    size_t bytes = 0;
    for (size_t i = 0; i < entries.size() && i < size && bytes < kMaxPageBytes; ++i) {
      v1::AdapterSummary* summary = out->add_adapters();
      messages.Fill(entries[i], registry_->FindDigest(entries[i].digest), summary);
      bytes += summary->ByteSizeLong();
    }
    const auto count = static_cast<size_t>(out->adapters_size());
    if (count < entries.size()) {
      out->set_next_page_token(MakePageToken(
          tenant, AdapterRef{entries[count - 1].name, entries[count - 1].version}.Text()));
    }
    return absl::OkStatus();
  }

  Registry* const registry_;
  Engine* const engine_;
  const ModelSpec model_;
  WorkPool* const pool_;
  WorkPool* const registrations_;
  WorkPool* const fetches_;
  std::mutex pins_mutex_;  // a check of pins, their change and its news are one
};

AdaptersService::AdaptersService(Registry* registry, Engine* engine, ModelSpec model,
                                 WorkPool* pool, WorkPool* registrations, WorkPool* fetches)
    : service_(std::make_unique<Service>(registry, engine, std::move(model), pool, registrations,
                                         fetches)) {}
AdaptersService::~AdaptersService() = default;
grpc::Service* AdaptersService::service() { return service_.get(); }

}  // namespace rootstock
