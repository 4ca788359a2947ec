// lora-worker: one tp_rank of a group. The main thread is the step thread: it alone calls MPI.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/library_log.h"
#include "worker/device/cpu_device.h"
#include "worker/link/blobs/blob_cache.h"
#include "worker/link/group_bus.h"
#include "worker/link/group_guard.h"
#include "worker/link/group_link.h"
#include "worker/link/rendezvous.h"
#include "worker/link/signals.h"
#include "worker/parallel/make_communicator.h"
#include "worker/parallel/node.h"
#include "worker/runtime/startup.h"
#include "worker/runtime/worker_metrics.h"
#include "worker/runtime/worker_runtime.h"
#include "worker/runtime_executor.h"

namespace rootstock {
namespace {

// By which the kernels of ranks on GPUs outwait the watchdog: it ends the process, not they a step.
constexpr std::chrono::seconds kMargin(2);

// NCCL is loaded, and compared, only where the group takes it.
RankHello MakeHello(const WorkerOptions& options, const ModelPlan& plan, const Device& device,
                    int tp_size, int metrics_port) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return {{host, device.name(), BuildId(), static_cast<uint32_t>(getpid()),
           static_cast<uint32_t>(metrics_port)},
          plan.fingerprint,
          options.model,
          plan.geometry,
          plan.source.dtype,
          options.group,
          device.kind(),
          plan.cuda && tp_size > 1 ? NcclVersion() : "none"};
}

// From options to the exit code. An error is every rank's.
absl::StatusOr<int> Serve(const WorkerOptions& options, GroupBus& bus, Metrics& metrics,
                          std::unique_ptr<MetricsServer>& server,
                          std::unique_ptr<GroupGuard>& guard) {
  const Node node = FindNode();
  const int port =
      options.metrics_port == 0 ? 0 : static_cast<int>(options.metrics_port) + node.local_rank;
  auto started = MetricsServer::Start(metrics, "0.0.0.0", port);
  RETURN_IF_ERROR(bus.Agree(started.status()));
  server = *std::move(started);
  RETURN_IF_ERROR(bus.Agree(CheckTakesFiles(options.cache_dir + "/adapters")));
  const HostPlace place{node.local_rank, node.local_size};
  absl::StatusOr<ModelPlan> plan = PlanModel(options, bus.tp_size(), place);
  RETURN_IF_ERROR(bus.Agree(plan.status()));
  const int threads =
      options.threads > 0 ? static_cast<int>(options.threads) : CpuThreads(node.local_size);
  absl::StatusOr<Backend> backend = MakeBackend(*plan, place, threads);
  RETURN_IF_ERROR(bus.Agree(backend.status()));
  const RankHello hello =
      MakeHello(options, *plan, *backend->device, bus.tp_size(), server->port());
  ASSIGN_OR_RETURN(const Group group, Rendezvous(bus, hello));
  if (bus.tp_rank() == 0 && !options.port_file.empty()) WritePorts(options.port_file, group.info);

  WorkerMetrics worker_metrics(
      metrics, bus.tp_rank(),
      {plan->cuda ? hello.rank.device : "", hello.rank.host, options.group, hello.rank.build});
  const auto on_loss =
      worker_metrics.OnLoss([&guard](const std::string& why) { EndGroup(*guard, why); });
  guard = std::make_unique<GroupGuard>(PeersOnHost(group.info, bus.tp_rank()), &EndGroup);
  const std::chrono::seconds patience(options.step_timeout);
  auto communicator = MakeCommunicator(
      *backend->device, {.limit = patience, .wait_limit = patience + kMargin, .on_loss = on_loss});
  RETURN_IF_ERROR(bus.Agree(communicator.status()));
  // Steps on GPUs leave the host idle: it waits beside the watchdog of their collectives.
  if (plan->cuda) {
    bus.set_patience(patience, [on_loss](const std::string& why) {
      on_loss({GroupLoss::Cause::kLatePeer, why});
    });
  }
  BlobCache cache(options.cache_dir + "/adapters", options.disk_cache_bytes);
  const LoadPeers peers{node.tp_ranks, [&bus] { return bus.Meet(absl::OkStatus()); }};
  auto model = LoadedModel::Create(
      plan->source, plan->spec, plan->tp, *std::move(backend), group.geometry, **communicator,
      {[&cache](const Digest& d, const BlobSink& sink) { return cache.Read(d, sink); },
       HostCacheBytes(options, place)},
      peers);
  RETURN_IF_ERROR(bus.Meet(model.status()));
  LogInfo("ready: tp_rank ", bus.tp_rank(), " of ", bus.tp_size(), " on ", hello.rank.device, ", ",
          threads, " threads, ", DTypeName(plan->source.dtype), " weights, ",
          group.geometry.num_pages == 0 ? "as many as fit" : absl::StrCat(group.geometry.num_pages),
          " pages of ", group.geometry.page_bytes, " bytes");
  WorkerRuntime runtime(**model, **communicator);
  RuntimeExecutor executor(runtime, worker_metrics, **communicator);
  auto code = RunGroup(bus, executor, cache,
                       {options.coordinator, node.local_rank == 0, group.info, options.object_uri});
  if (!code.ok()) {
    // Other ranks may wait in a collective that this one has left.
    LogError(std::string(code.status().message()));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return code;
}

int Run(const WorkerOptions& options, Metrics& metrics, std::unique_ptr<MetricsServer>& server) {
  GroupBus bus(MPI_COMM_WORLD);
  InitLogging(absl::StrCat("worker[", bus.tp_rank(), "/", bus.tp_size(), "]"),
              ParseLogLevel(options.log_level));
  RouteLibraryLogs();
  // Ends before MPI does, where the ranks meet for the last time.
  std::unique_ptr<GroupGuard> guard;
  const absl::StatusOr<int> code = Serve(options, bus, metrics, server, guard);
  if (code.ok()) return *code;
  // Every rank has come here, with the same text.
  if (bus.tp_rank() == 0) LogError(std::string(code.status().message()));
  return 1;
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) {
  rootstock::BlockDrainSignals();
  rootstock::DieWithMpirun();
  rootstock::WorkerOptions options;
  if (const auto code = rootstock::ParseFlagsOrExit(
          {"lora-worker", "One tensor-parallel rank of a group; start it with mpirun.",
           ROOTSTOCK_VERSION},
          rootstock::WorkerFlags(options), argc, argv)) {
    return *code;
  }
  // A rank that waits in a collective lets the others run: where cores are shared this is the
  // difference between microseconds and time slices, on a core of its own it costs nothing.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  rootstock::Metrics metrics;
  std::unique_ptr<rootstock::MetricsServer> server;
  const int code = rootstock::Run(options, metrics, server);
  MPI_Finalize();
  // The server would take two seconds to stop, and mpirun kills one second after its SIGTERM.
  _exit(code);
}
