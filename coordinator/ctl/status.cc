#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/wait_notice.h"
#include "rootstock/v1/cluster.grpc.pb.h"

namespace rootstock {
namespace {

void PrintStep(const char* what, const v1::StepSummary& step) {
  std::printf("    %-12s %u rows, %u tokens, %u adapters at once, %.1f ms\n", what, step.rows(),
              step.tokens(), step.distinct_adapters(), step.duration_us() / 1000.0);
}

void PrintGroup(const v1::GroupStatus& group) {
  std::printf("\ngroup %s: %s, tp_size %u, epoch %llu, pool %s\n", group.name().c_str(),
              group.state().c_str(), group.tp_size(),
              static_cast<unsigned long long>(group.epoch()), group.pool().c_str());
  if (group.state() != "ready" && group.state() != "draining") return;  // it has nothing
  std::printf("    pages        %u of %u bytes (%u tokens): %u free, %u kv, %u adapter\n",
              group.pages(), group.page_bytes(), group.page_tokens(), group.pages_free(),
              group.pages_kv(), group.pages_adapter());
  std::printf("    adapters     %d resident\n", group.resident_adapters_size());
  std::printf("    steps        %llu\n", static_cast<unsigned long long>(group.steps()));
  PrintStep("last step", group.last_step());
  PrintStep("widest step", group.widest_step());
  for (const v1::RankStatus& rank : group.ranks()) {
    std::printf("    tp_rank %-4u %s, %s, build %s, metrics port %u\n", rank.tp_rank(),
                rank.host().c_str(), rank.device().c_str(), rank.build().c_str(),
                rank.metrics_port());
  }
}

}  // namespace

int ShowStatus(const ClientOptions& options) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::StatusResponse response;
  const grpc::Status status =
      v1::Cluster::NewStub(Connect(options))->Status(&context, v1::StatusRequest(), &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
    return kExitOk;
  }
  std::printf("coordinator %s, incarnation %llu%s\n", response.version().c_str(),
              static_cast<unsigned long long>(response.incarnation()),
              response.draining() ? ", draining" : "");
  const std::string fingerprint =  // known once a group has told it
      response.model_fingerprint().empty()
          ? ""
          : absl::StrCat(" (", response.model_fingerprint().substr(0, 12), ")");
  std::printf("model       %s%s\n", response.served_model().c_str(), fingerprint.c_str());
  std::printf("requests    %u running, %u queued\n", response.running_requests(),
              response.queued_requests());
  std::printf("adapters    %u registered\n", response.adapters());
  std::printf("metrics     %s\n", response.metrics_address().c_str());
  for (const v1::GroupStatus& group : response.groups()) PrintGroup(group);
  const std::string why = WhyNoGroup(response);
  if (!why.empty()) std::printf("\n%s: requests wait until a lora-worker is\n", why.c_str());
  return kExitOk;
}

int DrainGroup(const ClientOptions& options, const std::string& group) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::DrainGroupRequest request;
  request.set_group(group);
  v1::DrainGroupResponse response;
  const grpc::Status status =
      v1::Cluster::NewStub(Connect(options))->DrainGroup(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("group %s drains\n", group.c_str());
  }
  return kExitOk;
}

}  // namespace rootstock
