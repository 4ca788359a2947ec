#include "coordinator/rpc/cluster_service.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "coordinator/rpc/status.h"
#include "rootstock/v1/cluster.grpc.pb.h"

namespace rootstock {
namespace {

void ToProto(const StepSummary& in, v1::StepSummary* out) {
  out->set_rows(in.rows);
  out->set_tokens(in.tokens);
  out->set_distinct_adapters(in.distinct_adapters);
  out->set_duration_us(in.duration_us);
}

// Of one that is lost nothing is known until it attaches again.
void PagesToProto(const GroupStatus& in, v1::GroupStatus* out) {
  if (in.state == "drained" || in.state == "broken") return;
  out->set_pages(in.geometry.num_pages);
  out->set_pages_free(in.pages_free);
  out->set_pages_kv(in.pages_kv);
  out->set_pages_adapter(in.pages_adapter);
  out->set_page_tokens(in.geometry.page_tokens);
  out->set_page_bytes(in.geometry.page_bytes);
}

void ToProto(const GroupStatus& in, v1::GroupStatus* out) {
  out->set_name(in.info.name);
  out->set_pool(in.info.pool);
  out->set_state(in.state);
  out->set_epoch(in.epoch.attach);
  out->set_tp_size(in.info.tp_size);
  PagesToProto(in, out);
  for (size_t i = 0; i < in.info.ranks.size(); ++i) {
    v1::RankStatus* rank = out->add_ranks();
    rank->set_tp_rank(static_cast<uint32_t>(i));
    rank->set_host(in.info.ranks[i].host);
    rank->set_device(in.info.ranks[i].device);
    rank->set_build(in.info.ranks[i].build);
    rank->set_metrics_port(in.info.ranks[i].metrics_port);
  }
  for (const ResidentAdapter& adapter : in.adapters) {
    out->add_resident_adapters(adapter.digest.Hex());
  }
  out->set_steps(in.steps);
  ToProto(in.last_step, out->mutable_last_step());
  ToProto(in.widest_step, out->mutable_widest_step());
}

}  // namespace

// Thread-safe.
class ClusterService::Service : public v1::Cluster::CallbackService {
 public:
  Service(ClusterFacts facts, Engine* engine, WorkPool* pool)
      : facts_(std::move(facts)), engine_(engine), pool_(pool) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusResponse* response) override {
    return RunUnary(context, pool_, [this, response] {
      const EngineStatus status = engine_->Status();
      response->set_version(facts_.version);
      response->set_served_model(facts_.served_model);
      response->set_incarnation(facts_.incarnation);
      response->set_draining(status.draining);
      response->set_queued_requests(status.queued);
      response->set_running_requests(status.running);
      response->set_adapters(static_cast<uint32_t>(facts_.num_adapters()));
      for (const GroupStatus& group : status.groups) {
        ToProto(group, response->add_groups());
        // Weights are the workers' to read: all groups have the same.
        response->set_model_fingerprint(group.info.model_fingerprint.Hex());
      }
      response->set_metrics_address(facts_.metrics_address);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* DrainGroup(grpc::CallbackServerContext* context,
                                       const v1::DrainGroupRequest* request,
                                       v1::DrainGroupResponse*) override {
    return RunUnary(context, pool_,
                    [this, request] { return engine_->DrainGroup(request->group()); });
  }

 private:
  const ClusterFacts facts_;
  Engine* const engine_;
  WorkPool* const pool_;
};

ClusterService::ClusterService(ClusterFacts facts, Engine* engine, WorkPool* pool)
    : service_(std::make_unique<Service>(std::move(facts), engine, pool)) {}
ClusterService::~ClusterService() = default;
grpc::Service* ClusterService::service() { return service_.get(); }

}  // namespace rootstock
