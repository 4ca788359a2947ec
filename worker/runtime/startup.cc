#include "worker/runtime/startup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/objects/object_store.h"
#include "worker/parallel/make_communicator.h"

namespace rootstock {
namespace {

constexpr uint32_t kCpuPageTokens = 16;

absl::StatusOr<DType> WeightType(const WorkerOptions& options, bool cuda) {
  if (options.dtype == "f32") return DType::kF32;
  if (options.dtype != "auto" || options.load_format == "dummy") return DType::kBF16;
  ASSIGN_OR_RETURN(const DType files, DTypeOfFiles(options.model));
  const DType kept = AutoWeightType(files, cuda);
  if (kept != files) {
    LogInfo("--dtype auto: the files' ", DTypeName(files), " weights are kept as ", DTypeName(kept),
            cuda ? ", rounded; --dtype f32 keeps them exactly" : ", exactly");
  }
  return kept;
}

absl::Status CheckObjectStore(const WorkerOptions& options) {
  const std::string& uri = options.object_uri;
  if (uri.empty() || ParseStoreUri(uri).ok()) return absl::OkStatus();
  return InvalidField(Reason::kConfigInvalid, "object-store", uri,
                      "must be file:///DIR or s3://BUCKET/PREFIX");
}

// auto: where this build and host can, for every rank of the host.
absl::StatusOr<bool> UseCuda(const WorkerOptions& options, int tp_size, const HostPlace& place) {
  if (options.device == "cpu") return false;
  if (options.device == "auto") {
    if (tp_size > 1 && !CanJoinGpus().ok()) return false;
    return NumCudaDevices() >= place.local_size && FreeCudaBytes(place.local_rank).ok();
  }
  if (tp_size > 1) RETURN_IF_ERROR(CanJoinGpus());
  RETURN_IF_ERROR(FreeCudaBytes(place.local_rank).status());
  return true;
}

// Of the largest share: embedding, head and the projections.
uint64_t WeightBytes(const ModelPlan& plan) {
  const ModelSpec& spec = plan.spec;
  uint64_t most = 0;
  for (int rank = 0; rank < plan.tp.tp_size(); ++rank) {
    uint64_t elements = uint64_t{1} * plan.tp.shards[rank].vocab.size() * spec.hidden_size *
                        (spec.tie_word_embeddings ? 1 : 2);
    for (const Module module : kAllModules) {
      const uint64_t sharded = plan.tp.sharded_features(rank, module).size();
      const uint64_t whole =
          IsRowParallel(module) ? spec.out_features(module) : spec.in_features(module);
      elements += spec.num_layers * sharded * whole;
    }
    most = std::max(most, elements * DTypeBytes(plan.source.dtype));
  }
  return most;
}

absl::Status CheckCudaModel(const ModelSpec& spec) {
  if (spec.head_dim % 8 == 0 && spec.head_dim <= 256) return absl::OkStatus();
  return InvalidField(Reason::kModelInvalid, "head_dim", absl::StrCat(spec.head_dim),
                      "a GPU serves multiples of 8 up to 256");
}

// What is left is shared out at the first attach, when the limits of steps are known.
absl::Status CheckWeightsFit(const ModelPlan& plan, const HostPlace& place) {
  ASSIGN_OR_RETURN(const uint64_t free, FreeCudaBytes(place.local_rank));
  const uint64_t weights = WeightBytes(plan);
  if (weights < free) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "device",
                   absl::StrCat("cuda:", place.local_rank),
                   absl::StrCat("has ", free >> 20, " MiB free; the weights take ", weights >> 20));
}

}  // namespace

DType AutoWeightType(DType files, bool cuda) {
  if (files != DType::kF16) return files;
  return cuda ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<ModelPlan> PlanModel(const WorkerOptions& options, int tp_size,
                                    const HostPlace& place) {
  RETURN_IF_ERROR(CheckObjectStore(options));
  ModelPlan plan;
  ASSIGN_OR_RETURN(plan.spec, LoadModelSpec(options.model));
  ASSIGN_OR_RETURN(plan.tp, MakeTpPlan(plan.spec, tp_size));
  ASSIGN_OR_RETURN(plan.cuda, UseCuda(options, tp_size, place));
  ASSIGN_OR_RETURN(DType dtype, WeightType(options, plan.cuda));
  // The GPU computes in the type of the weights, the host's processor always in f32.
  if (plan.cuda) plan.compute_type = dtype;
  plan.source = {options.model, options.load_format == "dummy", dtype};
  ASSIGN_OR_RETURN(plan.fingerprint, FingerprintOf(plan.source, plan.spec));
  uint64_t budget = 0;
  if (plan.cuda) {
    RETURN_IF_ERROR(CheckCudaModel(plan.spec));
    RETURN_IF_ERROR(CheckWeightsFit(plan, place));
  } else {
    budget = DefaultHostBudget(place.local_size);
  }
  GeometryRequest request{options.page_tokens, options.num_pages, budget};
  if (request.page_tokens == 0) {
    request.page_tokens =
        plan.cuda ? CudaPageTokens(plan.spec, plan.tp, plan.compute_type) : kCpuPageTokens;
  }
  const bool later = plan.cuda && options.num_pages == 0;
  if (later) request.num_pages = 2;
  ASSIGN_OR_RETURN(plan.geometry, MakeGeometry(plan.spec, plan.tp, plan.compute_type, request));
  if (later) plan.geometry.num_pages = 0;
  return plan;
}

uint64_t HostCacheBytes(const WorkerOptions& options, const HostPlace& place) {
  if (options.host_cache_bytes < 0) return DefaultHostCacheBytes(place.local_size);
  return static_cast<uint64_t>(options.host_cache_bytes);
}

void WritePorts(const std::string& file, const GroupInfo& info) {
  std::string text;
  for (size_t r = 0; r < info.ranks.size(); ++r) {
    if (r > 0) absl::StrAppend(&text, "tp_rank ", r, " ");
    absl::StrAppend(&text, "metrics ", info.ranks[r].metrics_port, "\n");
  }
  std::ofstream(file + ".new") << text;
  std::error_code error;
  std::filesystem::rename(file + ".new", file, error);
  if (error) LogWarning("port-file=", file, ": ", error.message());
}

absl::StatusOr<Backend> MakeBackend(const ModelPlan& plan, const HostPlace& place, int threads) {
  if (plan.cuda) return MakeCudaBackend(place.local_rank, plan.compute_type);
  return MakeCpuBackend(threads);
}

std::string BuildId() {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (self) {
    self.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(buffer.data()),
                          static_cast<size_t>(self.gcount())));
  }
  return absl::StrCat(ROOTSTOCK_VERSION, "-", hash.Finish().Short());
}

}  // namespace rootstock
