#include "coordinator/rpc/aliases_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/page.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/aliases.grpc.pb.h"

namespace rootstock {
namespace {

constexpr int kDefaultHistory = 20;
constexpr int kMaxHistory = 1000;

std::vector<AliasTarget> TargetsOf(const v1::SetAliasRequest& request) {
  std::vector<AliasTarget> out;
  for (const v1::AliasTarget& in : request.targets()) {
    out.push_back({in.name(), in.version(), std::max(in.weight(), 1u)});
  }
  return out;
}

void Fill(const AliasEntry& in, v1::Alias* out) {
  out->set_name(in.name);
  out->set_tenant(in.tenant);
  out->set_revision(in.revision);
  for (const AliasTarget& target : in.targets) {
    v1::AliasTarget* to = out->add_targets();
    to->set_name(target.name);
    to->set_version(target.version);
    to->set_weight(target.weight);
  }
  out->set_changed_unix_ms(in.changed_unix_ms);
  out->set_rolled_back_to(in.rolled_back_to);
}

absl::Status FillWith(const absl::StatusOr<AliasEntry>& entry, v1::Alias* out) {
  if (entry.ok()) Fill(*entry, out);
  return entry.status();
}

}  // namespace

// Thread-safe.
class AliasesService::Service : public v1::Aliases::CallbackService {
 public:
  Service(Registry* registry, WorkPool* pool) : registry_(registry), pool_(pool) {}

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context,
                                const v1::SetAliasRequest* request, v1::Alias* response) override {
    return RunUnary(context, pool_, [this, request, response] {
      return FillWith(registry_->SetAlias(request->name(), TenantOf(request->tenant()),
                                          TargetsOf(*request), request->expected_revision()),
                      response);
    });
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetAliasRequest* request,
                                v1::AliasWithHistory* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      const std::string tenant = TenantOf(request->tenant());
      const int asked = request->history() <= 0 ? kDefaultHistory : request->history();
      ASSIGN_OR_RETURN(const std::vector<AliasEntry> history,
                       registry_->AliasHistory(request->name(), tenant,
                                               static_cast<size_t>(std::min(asked, kMaxHistory))));
      // The newest revision is the alias: read at one moment with the others.
      Fill(history.at(0), response->mutable_alias());
      for (const AliasEntry& revision : history) Fill(revision, response->add_history());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListAliasesRequest* request,
                                 v1::ListAliasesResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      const std::string tenant = TenantOf(request->tenant());
      ASSIGN_OR_RETURN(const size_t size, PageSize(request->page_size()));
      ASSIGN_OR_RETURN(const std::string after, ParsePageToken(request->page_token(), tenant));
      std::vector<AliasEntry> entries = registry_->ListAliases(tenant, after, size + 1);
      if (entries.size() > size) {
        entries.pop_back();
        response->set_next_page_token(MakePageToken(tenant, entries.back().name));
      }
      for (const AliasEntry& entry : entries) Fill(entry, response->add_aliases());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const v1::RollbackAliasRequest* request,
                                     v1::Alias* response) override {
    return RunUnary(context, pool_, [this, request, response] {
      return FillWith(
          registry_->RollbackAlias(request->name(), TenantOf(request->tenant()),
                                   request->to_revision(), request->expected_revision()),
          response);
    });
  }

  grpc::ServerUnaryReactor* Remove(grpc::CallbackServerContext* context,
                                   const v1::RemoveAliasRequest* request,
                                   v1::RemoveAliasResponse* response) override {
    return RunUnary(context, pool_, [this, request] {
      return registry_->RemoveAlias(request->name(), TenantOf(request->tenant()),
                                    request->expected_revision());
    });
  }

 private:
  Registry* const registry_;
  WorkPool* const pool_;
};

AliasesService::AliasesService(Registry* registry, WorkPool* pool)
    : service_(std::make_unique<Service>(registry, pool)) {}
AliasesService::~AliasesService() = default;
grpc::Service* AliasesService::service() { return service_.get(); }

}  // namespace rootstock
