#include "worker/runtime/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/safetensors/safetensors.h"
#include "worker/weights/weight_source.h"

namespace rootstock {
namespace {

constexpr uint64_t kDummySeed = 1;
constexpr uint32_t kFewestPages = 2;
// Where steps leave the host's cores idle.
constexpr int kGpuBuildThreads = 4;
// A third of a millisecond: threads that rest take 0.1 ms and more to wake up.
constexpr uint32_t kGpuOrderedBytes = 16 << 20;
// For kernels and libraries that are loaded at their first use.
constexpr uint64_t kReserveBytes = uint64_t{512} << 20;
constexpr uint64_t kReserveShare = 256;
constexpr char kEmbedding[] = "model.embed_tokens.weight";

// A line every two seconds, and one at the end.
std::function<void(uint64_t, uint64_t)> LogProgress() {
  using Clock = std::chrono::steady_clock;
  return [told = Clock::now()](uint64_t done, uint64_t total) mutable {
    if (done < total && Clock::now() - told < std::chrono::seconds(2)) return;
    told = Clock::now();
    LogInfo("weights: ", done >> 20, " of ", total >> 20, " MiB");
  };
}

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelSource& source,
                                                          const ModelSpec& spec, const TpPlan& tp,
                                                          int tp_rank, Device& device,
                                                          const LoadPeers& peers) {
  const LoadOptions options{source.dtype, LogProgress(), peers};
  if (source.dummy) return ModelWeights::Dummy(spec, tp, tp_rank, device, kDummySeed, options);
  return ModelWeights::Load(source.dir, spec, tp, tp_rank, device, options);
}

// The most that the row tables of adapters on one page take: a uint32 a row and, as an adapter
// takes a page at least, its sites.
uint64_t AdapterTableBytes(const PageGeometry& geometry, const ModelSpec& spec) {
  int shortest = spec.hidden_size;
  for (const Module module : kAllModules) {
    shortest = std::min({shortest, spec.in_features(module), spec.out_features(module)});
  }
  const uint64_t row_bytes = std::max<uint64_t>(kRowAlignment, 2 * shortest);
  return geometry.page_bytes / row_bytes * sizeof(uint32_t) +
         spec.num_layers * kAllModules.size() * sizeof(LoraSite);
}

// `count` becomes the smallest of all tp_ranks'. Collectives work in the device's memory.
absl::Status TakeFewest(Communicator& communicator, Device& device, uint32_t& count) {
  if (communicator.size() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DeviceBuffer shared, device.Allocate(sizeof(count), "page count"));
  uint32_t fewest = count;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    ASSIGN_OR_RETURN(std::byte * staged, device.Stage(shared.data(), sizeof(count)));
    std::memcpy(staged, &count, sizeof(count));
    RETURN_IF_ERROR(device.WriteBack());
    RETURN_IF_ERROR(communicator.Broadcast(shared.data(), sizeof(count), rank));
    uint32_t of_rank = 0;
    RETURN_IF_ERROR(
        device.Read(shared.data(), std::as_writable_bytes(std::span(&of_rank, size_t{1}))));
    fewest = std::min(fewest, of_rank);
  }
  count = fewest;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DType> DTypeOfFiles(const std::filesystem::path& model_dir) {
  ASSIGN_OR_RETURN(const ShardedSafetensors files,
                   ShardedSafetensors::Open(model_dir, FileUse::kParts));
  const TensorView* embedding = files.Find(kEmbedding);
  if (embedding == nullptr) {
    return InvalidField(Reason::kModelInvalid, "tensor", kEmbedding, "is missing");
  }
  return embedding->dtype;
}

absl::StatusOr<Digest> FingerprintOf(const ModelSource& source, const ModelSpec& spec) {
  if (source.dummy) return MakeDummySource(spec, kDummySeed)->Fingerprint();
  ASSIGN_OR_RETURN(const auto files, OpenWeightFiles(source.dir, FileUse::kParts));
  return files->Fingerprint();
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Create(
    const ModelSource& source, const ModelSpec& spec, const TpPlan& tp, Backend backend,
    const PageGeometry& geometry, Communicator& communicator, AdapterTiers tiers,
    const LoadPeers& peers) {
  const int tp_rank = communicator.rank();
  std::unique_ptr<LoadedModel> out(new LoadedModel(spec, tp, tp_rank, std::move(backend)));
  out->info_ = {spec.vocab_size, spec.max_position, out->backend_.compute_type, geometry};
  out->communicator_ = &communicator;
  ASSIGN_OR_RETURN(out->free_at_start_, out->backend_.device->FreeBytes());
  if (communicator.size() > 1) {
    const uint64_t before = out->backend_.free_bytes;
    out->communicator_bytes_ = before - std::min(before, out->free_at_start_);
  }
  // Pinning memory takes seconds: it goes beside the reading of weights.
  std::future<absl::Status> loader =
      std::async(std::launch::async, [&] { return out->MakeLoader(geometry, std::move(tiers)); });
  auto weights = LoadWeights(source, spec, tp, tp_rank, *out->backend_.device, peers);
  RETURN_IF_ERROR(loader.get());
  ASSIGN_OR_RETURN(out->weights_, std::move(weights));
  if (geometry.num_pages > 0) RETURN_IF_ERROR(out->MakePages());
  return out;
}

absl::Status LoadedModel::MakeLoader(const PageGeometry& geometry, AdapterTiers tiers) {
  ASSIGN_OR_RETURN(lane_, backend_.device->MakeCopyLane());
  ASSIGN_OR_RETURN(auto blocks,
                   HostBlocks::Create(*lane_, geometry.page_bytes, tiers.host_cache_bytes));
  host_cache_ = std::make_unique<HostCache>(std::move(blocks));
  LoaderParts parts;
  parts.spec = spec_;
  parts.tp = tp_;
  parts.tp_rank = tp_rank_;
  parts.compute_dtype = info_.compute_dtype;
  parts.page_bytes = geometry.page_bytes;
  parts.lane = lane_.get();
  parts.cache = host_cache_.get();
  parts.read = std::move(tiers.read);
  parts.build_threads = backend_.asynchronous ? kGpuBuildThreads : 1;
  parts.ordered_bytes = backend_.asynchronous ? kGpuOrderedBytes : 0;
  loader_ = std::make_unique<TierLoader>(std::move(parts));
  return absl::OkStatus();
}

absl::Status LoadedModel::MakePages() {
  const PageGeometry& geometry = info_.geometry;
  ASSIGN_OR_RETURN(slab_, Slab::Create(*backend_.device, geometry));
  loader_->SetSlab(slab_.get());
  ops_ = backend_.make_ops({slab_->data(), geometry.page_bytes, geometry.page_tokens});
  return absl::OkStatus();
}

absl::Status LoadedModel::MakeModel(const ModelLimits& limits) {
  const ModelParts parts{weights_.get(), backend_.device.get(), ops_.get(), slab_.get(),
                         communicator_};
  ASSIGN_OR_RETURN(model_, Model::Create(spec_, tp_, tp_rank_, parts, limits));
  limits_ = limits;
  return absl::OkStatus();
}

// What steps of these limits take, libraries and graphs included, is found by a rehearsal beside as
// few pages as there can be. A rank that has no room must not leave the others in the next
// collective: all agree on each part.
absl::Status LoadedModel::PlanPages(const ModelLimits& limits) {
  PageGeometry& geometry = info_.geometry;
  geometry.num_pages = kFewestPages;
  RETURN_IF_ERROR(communicator_->Agree(MakePages()));
  ModelLimits rehearsal = limits;
  rehearsal.rehearsal = true;
  RETURN_IF_ERROR(MakeModel(rehearsal));
  const absl::StatusOr<uint64_t> left = backend_.device->FreeBytes();
  RETURN_IF_ERROR(communicator_->Agree(left.status()));
  const uint64_t free = *left - std::min(*left, ops_->recorded_bytes());
  model_.reset();
  ops_.reset();
  slab_.reset();
  geometry.num_pages = 0;
  const uint64_t reserve = kReserveBytes + free / kReserveShare;
  const uint64_t each = geometry.page_bytes + AdapterTableBytes(geometry, spec_);
  GeometryRequest request;
  request.page_tokens = geometry.page_tokens;
  request.budget_bytes = free > reserve ? (free - reserve) / each * geometry.page_bytes : 0;
  const auto fit = MakeGeometry(spec_, tp_, info_.compute_dtype, request);
  uint32_t pages = fit.ok() ? fit->num_pages : 0;
  RETURN_IF_ERROR(TakeFewest(*communicator_, *backend_.device, pages));
  if (pages < kFewestPages) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "device", backend_.device->name(),
        absl::StrCat(free >> 20, " MiB are free beside weights of ", weights_->device_bytes() >> 20,
                     " MiB and what steps of ", limits.max_tokens, " tokens, ", limits.max_rows,
                     " sequences and ", limits.max_positions, " positions take; ", reserve >> 20,
                     " MiB stay in reserve, a page takes ", geometry.page_bytes, " bytes"));
  }
  geometry.num_pages = pages;
  LogInfo("pages: ", pages, " of ", geometry.page_bytes, " bytes; ", free >> 20,
          " MiB were free beside weights and workspaces");
  return communicator_->Agree(MakePages());
}

absl::Status LoadedModel::Prepare(const ModelLimits& limits, int max_logprobs) {
  RETURN_IF_ERROR(communicator_->Agree(backend_.sampler->Prepare(
      {limits.num_slots, limits.max_outputs, max_logprobs, spec_.vocab_size})));
  if (model_ != nullptr && limits == limits_) return absl::OkStatus();
  model_.reset();
  if (slab_ == nullptr) RETURN_IF_ERROR(PlanPages(limits));
  return MakeModel(limits);
}

std::optional<DeviceMemoryUse> LoadedModel::memory() {
  const absl::StatusOr<uint64_t> free = backend_.device->FreeBytes();
  if (backend_.device->host_addressable() || !free.ok()) return std::nullopt;
  DeviceMemoryUse use;
  use.weights = weights_->device_bytes();
  use.pages = slab_ == nullptr ? 0 : uint64_t{info_.geometry.num_pages} * info_.geometry.page_bytes;
  use.graphs = ops_ == nullptr ? 0 : ops_->recorded_bytes();
  use.nccl = communicator_bytes_;
  use.free = *free;
  const uint64_t known = use.weights + use.pages + use.graphs + use.free;
  use.workspace = free_at_start_ > known ? free_at_start_ - known : 0;
  return use;
}

absl::StatusOr<const float*> LoadedModel::Forward(const ForwardBatch& batch) {
  return model_->Forward(batch);
}

}  // namespace rootstock
