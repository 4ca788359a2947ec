#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "common/base/status.h"

namespace rootstock {
namespace {

// A silent group or client is given up after both, within the 5 s in which a stopped rank without
// peers is to be noticed.
constexpr int kKeepaliveMs = 1000;
constexpr int kKeepaliveTimeoutMs = 3500;  // a link that loses packets sends them again meanwhile
constexpr int kMinPingIntervalMs = 1000;   // what a peer may send

constexpr char kInference[] = "rootstock.v1.Inference";
constexpr const char* kAlwaysServing[] = {"rootstock.v1.Adapters", "rootstock.v1.Aliases",
                                          "rootstock.v1.Uploads",  "rootstock.v1.Cluster",
                                          "rootstock.v1.Group",    "rootstock.v1.Blobs"};

void SetArguments(grpc::ServerBuilder& builder) {
  // A taken port is an error, not a port shared with whoever has it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

struct RpcServer::State {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const std::string& address, const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto state = std::make_unique<State>();
  grpc::ServerBuilder builder;
  SetArguments(builder);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &state->port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr || state->port <= 0) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "listen", address,
                     "can't listen there; is the port taken?");
  }
  auto* health = state->server->GetHealthCheckService();
  health->SetServingStatus(false);
  for (const char* name : kAlwaysServing) health->SetServingStatus(name, true);
  std::unique_ptr<RpcServer> server(new RpcServer(std::move(state)));
  server->SetServing(false);
  return server;
}

RpcServer::RpcServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
RpcServer::~RpcServer() { Shutdown(absl::Now()); }
int RpcServer::port() const { return state_->port; }

void RpcServer::SetServing(bool serving) {
  auto* health = state_->server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(kInference, serving);
}

void RpcServer::Shutdown(absl::Time deadline) {
  state_->server->Shutdown(absl::ToChronoTime(deadline));
  state_->server->Wait();
}

}  // namespace rootstock
