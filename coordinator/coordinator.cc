#include "coordinator/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "coordinator/adapter_parts.h"
#include "coordinator/base_model.h"
#include "coordinator/cluster/group_service.h"
#include "coordinator/engine/coordinator_engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/frontend/frontend.h"
#include "coordinator/rpc/adapters_service.h"
#include "coordinator/rpc/aliases_service.h"
#include "coordinator/rpc/cluster_service.h"
#include "coordinator/rpc/inference_service.h"
#include "coordinator/rpc/server.h"
#include "coordinator/rpc/uploads_service.h"
#include "coordinator/rpc/work_pool.h"

namespace rootstock {
namespace {

constexpr int kRequestThreads = 2;
constexpr int kAdminThreads = 2;
constexpr size_t kMaxWaitingAdmin = 256;
constexpr int kUploadThreads = 2;
constexpr size_t kMaxWaitingPieces = 256;  // one a stream
constexpr int kFetchThreads = 32;          // each may wait for the object store
constexpr int kBlobThreads = 4;
constexpr size_t kMaxWaitingBlobs = 1024;
constexpr int kRegistrationThreads = 8;
constexpr int kUriThreads = 32;  // registrations that each may wait for a store
constexpr size_t kMaxWaitingRegistrations = 64;
constexpr absl::Duration kLastAnswers = absl::Seconds(1);

// Thread-safe.
std::function<uint64_t()> RandomNumbers() {
  auto device = std::make_shared<std::random_device>();
  auto mutex = std::make_shared<std::mutex>();
  return [device, mutex] {
    std::lock_guard lock(*mutex);
    return uint64_t{(*device)()} << 32 | (*device)();
  };
}

TextPort MakeTextPort(Frontend* frontend) {
  return {
      .check_stop = [frontend](const auto& stop) { return frontend->CheckStop(stop); },
      .encode = [frontend](const std::string& text, bool special,
                           bool parse) { return frontend->Encode(text, special, parse); },
      .open =
          [frontend](TextPort::Open open, auto sink, auto on_stop) {
            return frontend->Open({.n = open.n,
                                   .prompt_tokens = std::move(open.prompt_tokens),
                                   .stop = std::move(open.stop),
                                   .include_stop_in_output = open.include_stop_in_output,
                                   .skip_special_tokens = open.skip_special_tokens,
                                   .min_tokens = open.min_tokens,
                                   .prompt_logprobs = open.prompt_logprobs},
                                  std::move(sink), std::move(on_stop));
          },
  };
}

// The host of HOST:PORT, brackets of an IPv6 address included.
std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Complete or absent, never half written.
absl::Status WritePorts(const std::string& file, int grpc, int metrics) {
  const std::string unfinished = file + ".new";
  std::ofstream out(unfinished);
  out << "grpc " << grpc << "\nmetrics " << metrics << "\n";
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(unfinished, file, error);
  if (out && !error) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "port-file", file,
                   "can't be written");
}

}  // namespace

// Outlives the parts: its server takes seconds to stop.
struct Coordinator::Monitor {
  Metrics metrics;
  std::unique_ptr<MetricsServer> server;
};

// In the order of construction: what comes later uses what comes before.
struct Coordinator::Parts {
  CoordinatorOptions options;
  Monitor* monitor;
  BaseModel model;
  std::shared_ptr<const EngineMetrics> engine_metrics;
  AdapterParts store;
  std::unique_ptr<Frontend> frontend;
  std::unique_ptr<CoordinatorEngine> engine;
  std::unique_ptr<WorkPool> request_pool, admin_pool, upload_pool, registrations, uri_registrations,
      blob_pool, fetch_pool;
  std::unique_ptr<InferenceService> inference;
  std::unique_ptr<AdaptersService> adapters;
  std::unique_ptr<AliasesService> aliases;
  std::unique_ptr<UploadsService> uploads;
  std::unique_ptr<ClusterService> cluster;
  std::unique_ptr<GroupService> groups;
  std::unique_ptr<BlobService> blobs;

  // The health service hears of groups from the transport, which may be before `server` is set.
  std::mutex serving_mutex;
  bool serving = false;
  bool draining = false;
  std::unique_ptr<RpcServer> server;

  std::shared_ptr<RegistryMetrics> MakeRegistryMetrics();
  absl::Status StartMetrics();
  void MakeEngine();
  void MakeServices();
  absl::Status Listen();
  void SetServing(bool now);
};

absl::Status Coordinator::Parts::StartMetrics() {
  monitor->metrics.MakeInfo("build_info", "What runs.",
                            {{"version", ROOTSTOCK_VERSION},
                             {"revision", ROOTSTOCK_REVISION},
                             {"cuda", "none"},
                             {"nccl", "none"}});
  ASSIGN_OR_RETURN(monitor->server, MetricsServer::Start(monitor->metrics, HostOf(options.listen),
                                                         static_cast<int>(options.metrics_port)));
  return absl::OkStatus();
}

std::shared_ptr<RegistryMetrics> Coordinator::Parts::MakeRegistryMetrics() {
  std::optional<ObjectTierGauges> object;
  if (!options.object_store.empty()) {
    object = {engine_metrics->object.adapters, engine_metrics->object.bytes};
  }
  return std::make_shared<RegistryMetrics>(monitor->metrics, object);
}

void Coordinator::Parts::MakeEngine() {
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8);
  frontend = std::make_unique<Frontend>(model.served.name, model.tokenizer, threads);
  const Clock clock = MonotonicClock();
  engine = std::make_unique<CoordinatorEngine>(EngineOptions{
      .model = model.served,
      .limits = {.max_model_len = model.served.max_model_len,
                 .max_num_seqs = options.max_num_seqs,
                 .max_num_batched_tokens = options.max_num_batched_tokens,
                 .max_logprobs = options.max_logprobs},
      .pool = {.eviction = *ParseEvictionPolicy(options.adapter_eviction),
               .kv_floor = options.kv_floor,
               .adapter_floor = options.adapter_floor,
               .prefetch_bytes = uint64_t{options.prefetch_mb} << 20,
               .max_decode_rows = options.max_decode_rows},
      .max_queued = options.max_queue,
      .step_timeout =
          options.step_timeout > 0 ? absl::Seconds(options.step_timeout) : absl::InfiniteDuration(),
      .clock = clock,
      .wall_clock = [] { return absl::Now(); },
      .queues = ThreadTaskQueues(clock),
      .metrics = engine_metrics,
      .registry = store.registry.get(),
      .text = MakeTextPort(frontend.get()),
      .shape = MakeModelPort(model.spec, *ParseLoraShardingPolicy(options.lora_sharding)),
      .random = RandomNumbers()});
}

void Coordinator::Parts::MakeServices() {
  request_pool = std::make_unique<WorkPool>(kRequestThreads, options.max_queue);
  admin_pool = std::make_unique<WorkPool>(kAdminThreads, kMaxWaitingAdmin);
  upload_pool = std::make_unique<WorkPool>(kUploadThreads, kMaxWaitingPieces, "uploads");
  registrations =
      std::make_unique<WorkPool>(kRegistrationThreads, kMaxWaitingRegistrations, "registrations");
  uri_registrations =
      std::make_unique<WorkPool>(kUriThreads, kMaxWaitingRegistrations, "registrations by URI");
  inference = std::make_unique<InferenceService>(
      engine.get(), frontend.get(), request_pool.get(),
      StreamMetrics{engine_metrics->stream_backpressure_seconds, MonotonicClock()},
      store.lazy.get());
  adapters = std::make_unique<AdaptersService>(store.registry.get(), engine.get(), model.spec,
                                               admin_pool.get(), registrations.get(),
                                               uri_registrations.get());
  engine->SetPins(AllPins(*store.registry));
  aliases = std::make_unique<AliasesService>(store.registry.get(), admin_pool.get());
  uploads = std::make_unique<UploadsService>(store.uploads.get(), store.registry.get(),
                                             engine.get(), model.spec, upload_pool.get(),
                                             registrations.get(), UploadMetrics(monitor->metrics));
  cluster = std::make_unique<ClusterService>(
      ClusterFacts{
          .version = ROOTSTOCK_VERSION,
          .served_model = model.served.name,
          .incarnation = store.registry->incarnation(),
          .metrics_address = absl::StrCat(HostOf(options.listen), ":", monitor->server->port()),
          .num_adapters = [this] { return store.registry->size(); }},
      engine.get(), request_pool.get());
  groups = std::make_unique<GroupService>(engine.get(),
                                          [this](int attached) { SetServing(attached > 0); });
  blob_pool = std::make_unique<WorkPool>(kBlobThreads, kMaxWaitingBlobs, "fetches");
  fetch_pool = std::make_unique<WorkPool>(kFetchThreads, kMaxWaitingBlobs, "fetches");
  blobs = std::make_unique<BlobService>(BlobService::Ports{
      .open = [this](const Digest& digest) { return store.registry->ReadContent(digest); },
      .is_on_disk = [this](const Digest& digest) { return store.registry->IsOnDisk(digest); },
      .read = [this](std::function<void()> job) { return blob_pool->Post(std::move(job)); },
      .fetch = [this](std::function<void()> job) { return fetch_pool->Post(std::move(job)); },
      .doubt = [this](const Digest& digest) { store.registry->DoubtContent(digest); }});
}

absl::Status Coordinator::Parts::Listen() {
  ASSIGN_OR_RETURN(
      auto started,
      RpcServer::Start(options.listen, {inference->service(), adapters->service(),
                                        aliases->service(), uploads->service(), cluster->service(),
                                        groups->service(), blobs->service()}));
  std::lock_guard lock(serving_mutex);
  server = std::move(started);
  server->SetServing(serving);
  return absl::OkStatus();
}

void Coordinator::Parts::SetServing(bool now) {
  std::lock_guard lock(serving_mutex);
  serving = now && !draining;
  if (server != nullptr) server->SetServing(serving);
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(const CoordinatorOptions& options) {
  auto monitor = std::make_unique<Monitor>();
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  parts->monitor = monitor.get();
  ASSIGN_OR_RETURN(parts->model, LoadBaseModel(options));
  parts->engine_metrics = std::make_shared<const EngineMetrics>(monitor->metrics);
  ASSIGN_OR_RETURN(parts->store, OpenAdapters(options, parts->model.spec, parts->model.served.name,
                                              parts->MakeRegistryMetrics()));
  RETURN_IF_ERROR(parts->StartMetrics());
  parts->MakeEngine();
  parts->MakeServices();
  PreloadAdapters(options, *parts->store.registry);
  RETURN_IF_ERROR(parts->Listen());
  const int grpc = parts->server->port();
  if (!options.port_file.empty()) {
    RETURN_IF_ERROR(WritePorts(options.port_file, grpc, monitor->server->port()));
  }
  LogInfo("serving ", parts->model.served.name, " on ", HostOf(options.listen), ":", grpc,
          ", metrics on port ", monitor->server->port(), ", ", parts->store.registry->size(),
          " adapters, incarnation ", parts->store.registry->incarnation());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(monitor), std::move(parts)));
}

Coordinator::Coordinator(std::unique_ptr<Monitor> monitor, std::unique_ptr<Parts> parts)
    : monitor_(std::move(monitor)), parts_(std::move(parts)) {}
Coordinator::~Coordinator() = default;

void Coordinator::Drain(absl::Time deadline) {
  {
    std::lock_guard lock(parts_->serving_mutex);
    parts_->draining = true;
  }
  parts_->SetServing(false);
  const absl::Status drained = parts_->engine->Drain(deadline);
  if (!drained.ok()) LogWarning("drain: ", std::string(drained.message()));
  parts_->store.sources->Cancel();  // nobody waits for a slow store
  parts_->store.registry->CancelReads();
  // Status calls and the last messages of ended requests; the groups' streams end here too.
  parts_->server->Shutdown(absl::Now() + kLastAnswers);
  parts_.reset();
}

}  // namespace rootstock
