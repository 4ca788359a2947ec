#include "coordinator/rpc/adapters_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/adapter_message.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/adapters.grpc.pb.h"

namespace rootstock {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kMaxPage = 1000;
// With many groups a page ends earlier: a message is at most 4 MB at clients that set nothing.
constexpr size_t kMaxPageBytes = 2 << 20;

std::string TenantOf(const std::string& tenant) { return tenant.empty() ? "default" : tenant; }

// A page token is where the page before ended: tenant, a NUL, the last one's text.
std::string MakePageToken(const std::string& tenant, const std::string& last) {
  std::string token;
  absl::WebSafeBase64Escape(absl::StrCat(tenant, std::string(1, '\0'), last), &token);
  return token;
}

// What the page comes after; empty for the first one.
absl::StatusOr<std::string> ParsePageToken(const std::string& token, const std::string& tenant) {
  if (token.empty()) return std::string();
  std::string place;
  const std::string start = tenant + '\0';
  if (!absl::WebSafeBase64Unescape(token, &place) || place.compare(0, start.size(), start) != 0) {
    return InvalidField(Reason::kInvalidArgument, "page_token", token,
                        "is not what a list of this tenant's adapters returned");
  }
  return place.substr(start.size());
}

absl::StatusOr<size_t> PageSize(int32_t asked) {
  if (asked < 0) {
    return InvalidField(Reason::kInvalidArgument, "page_size", absl::StrCat(asked), "is negative");
  }
  return static_cast<size_t>(asked == 0 ? kDefaultPage : std::min(asked, kMaxPage));
}

}  // namespace

// Thread-safe.
class AdaptersService::Service : public v1::Adapters::CallbackService {
 public:
  Service(Registry* registry, Engine* engine, ModelSpec model, WorkPool* pool,
          WorkPool* registrations)
      : registry_(registry),
        engine_(engine),
        model_(std::move(model)),
        pool_(pool),
        registrations_(registrations) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override {
    return RunUnary(context, registrations_, [this, request, response]() -> absl::Status {
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
    return RunUnary(context, pool_,
                    [this, request, response] { return ListPage(*request, response); });
  }

  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context,
                                       const v1::UnregisterRequest* request,
                                       v1::UnregisterResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<RetiredVersion> gone,
                       registry_->Unregister(request->name(), TenantOf(request->tenant())));
      uint64_t freed = 0;
      for (const RetiredVersion& version : gone) {
        if (!version.last_name) continue;
        engine_->DropAdapter(version.digest);
        freed += version.blob_bytes;
      }
      response->set_freed_bytes(freed);
      return absl::OkStatus();
    });
  }

 private:
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
};

AdaptersService::AdaptersService(Registry* registry, Engine* engine, ModelSpec model,
                                 WorkPool* pool, WorkPool* registrations)
    : service_(std::make_unique<Service>(registry, engine, std::move(model), pool, registrations)) {
}
AdaptersService::~AdaptersService() = default;
grpc::Service* AdaptersService::service() { return service_.get(); }

}  // namespace rootstock
