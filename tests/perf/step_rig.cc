#include "tests/perf/step_rig.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "tests/perf/silent_communicator.h"
#include "worker/device/cpu_device.h"
#include "worker/parallel/make_communicator.h"
#include "worker/parallel/node.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {
namespace {

struct Place {
  int tp_rank = 0, tp_size = 1, local_rank = 0;
};

// Among the processes of mpirun, if that started this one.
Place FindPlace() {
  Place place;
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) return place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.tp_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.tp_size);
  place.local_rank = FindNode().local_rank;
  return place;
}

LoraSpec AllLinear(const ModelSpec& model, int lora_rank) {
  LoraSpec lora;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const Module module : kAllModules)
      lora.modules.push_back({layer, module, lora_rank, 1.0f});
  }
  return lora;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRig>> StepRig::Create(const StepRigOptions& options) {
  std::unique_ptr<StepRig> rig(new StepRig(options));
  RETURN_IF_ERROR(rig->SetUp());
  return rig;
}

absl::Status StepRig::SetUp() {
  greedy_.temperature = 0;
  threads_ = options_.threads > 0 ? options_.threads : CpuThreads(1);
  ASSIGN_OR_RETURN(spec_, LoadModelSpec(options_.model));
  Place place = FindPlace();
  const bool alone = options_.alone_of > 1;
  if (alone) place = {0, options_.alone_of, place.local_rank};
  tp_rank_ = place.tp_rank;
  ASSIGN_OR_RETURN(tp_, MakeTpPlan(spec_, place.tp_size));
  if (options_.cuda) {
    ASSIGN_OR_RETURN(backend_, MakeCudaBackend(place.local_rank, options_.dtype));
  } else {
    backend_ = MakeCpuBackend(threads_);
  }
  if (alone) {
    communicator_ = std::make_unique<SilentCommunicator>(place.tp_size);
  } else if (place.tp_size > 1) {
    ASSIGN_OR_RETURN(communicator_, MakeCommunicator(*backend_.device));
  } else {
    communicator_ = ThreadCommunicator::Self();
  }
  RETURN_IF_ERROR(LoadWeights());
  RETURN_IF_ERROR(MakePages());
  ops_ = backend_.make_ops({slab_->data(), geometry_.page_bytes, geometry_.page_tokens});
  const ModelParts parts{weights_.get(), backend_.device.get(), ops_.get(), slab_.get(),
                         communicator_.get()};
  const int positions = options_.context + options_.steps;
  RETURN_IF_ERROR(backend_.sampler->Prepare({options_.rows, options_.rows, 0, spec_.vocab_size}));
  ModelLimits limits{std::max(kPrefillTokens, options_.rows), options_.rows, options_.rows,
                     positions, options_.rows};
  limits.record = !options_.eager;
  ASSIGN_OR_RETURN(model_, Model::Create(spec_, tp_, tp_rank_, parts, limits));
  const uint32_t row_pages = (positions + geometry_.page_tokens - 1) / geometry_.page_tokens;
  for (int i = 0; i < options_.rows; ++i) {
    Row& row = rows_.emplace_back();
    for (uint32_t p = 0; p < row_pages; ++p) row.pages.push_back(next_page_++);
  }
  return absl::OkStatus();
}

absl::Status StepRig::LoadAdapters() {
  const bool random = !options_.lora_ranks.empty();
  const int count = random || !blobs_.empty() ? options_.adapters : 0;
  adapters_.resize(count);
  adapter_pages_.resize(count);
  adapter_bytes_.resize(count);
  for (int i = 0; i < count; ++i) RETURN_IF_ERROR(random ? MakeRandomAdapter(i) : LoadFile(i));
  return absl::OkStatus();
}

absl::Status StepRig::LoadWeights() {
  LoadOptions load;
  load.dtype = options_.dtype;
  Device& device = *backend_.device;
  if (options_.dummy_weights) {
    ASSIGN_OR_RETURN(weights_, ModelWeights::Dummy(spec_, tp_, tp_rank_, device, 1, load));
  } else {
    ASSIGN_OR_RETURN(weights_,
                     ModelWeights::Load(options_.model, spec_, tp_, tp_rank_, device, load));
  }
  return absl::OkStatus();
}

absl::Status StepRig::MakePages() {
  GeometryRequest request;
  if (options_.cuda) request.page_tokens = CudaPageTokens(spec_, tp_, backend_.compute_type);
  const int positions = options_.context + options_.steps;
  const uint32_t row_pages = (positions + request.page_tokens - 1) / request.page_tokens;
  const uint64_t page_bytes =
      KvBytesPerToken(spec_, tp_, backend_.compute_type) * request.page_tokens;
  // Each adapter is bounded by its file; pages that stay unused are never touched.
  uint64_t adapter_bytes = 0;
  for (const int lora_rank : options_.lora_ranks) {
    uint64_t bytes = 0;
    for (const Module module : kAllModules) {
      bytes += uint64_t{1} * spec_.num_layers * lora_rank * 4 *
               (spec_.in_features(module) + spec_.out_features(module));
    }
    adapter_bytes = std::max(adapter_bytes, bytes);
  }
  for (const auto& dir : options_.adapter_dirs) {
    ASSIGN_OR_RETURN(const PeftAdapter adapter, LoadPeftAdapter(dir, spec_, PeftLimits{}));
    blobs_.push_back(EncodeCanonical(adapter, spec_));
    adapter_bytes = std::max<uint64_t>(adapter_bytes, 4 * blobs_.back().size());
  }
  request.num_pages = 1 + options_.rows * row_pages +
                      options_.adapters * static_cast<uint32_t>(adapter_bytes / page_bytes + 2);
  ASSIGN_OR_RETURN(geometry_, MakeGeometry(spec_, tp_, backend_.compute_type, request));
  ASSIGN_OR_RETURN(slab_, Slab::Create(*backend_.device, geometry_));
  return absl::OkStatus();
}

// The same pages each time.
std::vector<PageId> StepRig::PagesOf(int adapter, uint32_t count) {
  std::vector<PageId>& pages = adapter_pages_[adapter];
  while (pages.size() < count) pages.emplace_back(next_page_++);
  return pages;
}

int StepRig::LoraRankOf(int adapter) const {
  return options_.lora_ranks.empty() ? 0
                                     : options_.lora_ranks[adapter % options_.lora_ranks.size()];
}

absl::Status StepRig::LoadFile(int adapter) {
  const std::string& blob = blobs_[adapter % blobs_.size()];
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(blob.data()), blob.size());
  ASSIGN_OR_RETURN(const CanonicalAdapter content, CanonicalAdapter::Parse(bytes, spec_));
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, content.spec(), tp_, options_.sharding,
                                         backend_.compute_type, geometry_.page_bytes));
  adapter_bytes_[adapter] = layout.row_bytes(tp_rank_);
  const std::vector<PageId> pages = PagesOf(adapter, layout.num_pages());
  RETURN_IF_ERROR(slab_->WriteAdapter(content, layout, tp_rank_, pages, *backend_.device));
  ASSIGN_OR_RETURN(adapters_[adapter],
                   DeviceAdapter::Create(layout, content.spec(), spec_.num_layers, tp_rank_,
                                         geometry_, pages, *backend_.device));
  return absl::OkStatus();
}

absl::Status StepRig::MakeRandomAdapter(int adapter) {
  const LoraSpec lora = AllLinear(spec_, LoraRankOf(adapter));
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, lora, tp_, options_.sharding, backend_.compute_type,
                                         geometry_.page_bytes));
  adapter_bytes_[adapter] = layout.row_bytes(tp_rank_);
  Device& device = *backend_.device;
  const std::vector<PageId> pages = PagesOf(adapter, layout.num_pages());
  std::vector<std::byte> image(geometry_.page_bytes);
  for (const PageId page : pages) {
    const auto noise = [this] {
      return 0.01f * (static_cast<float>(random_() >> 8) * 0x1p-23f - 1.0f);
    };
    if (page.value % 16 == 1 || page == pages[0]) {  // enough to be no constant
      for (size_t at = 0; at < image.size(); at += DTypeBytes(backend_.compute_type)) {
        const float value = noise();
        const uint16_t half = FloatToBF16(value);
        if (backend_.compute_type == DType::kBF16) std::memcpy(&image[at], &half, sizeof(half));
        if (backend_.compute_type == DType::kF32) std::memcpy(&image[at], &value, sizeof(value));
      }
    }
    ASSIGN_OR_RETURN(std::byte * staged, device.Stage(slab_->page(page).data(), image.size()));
    std::memcpy(staged, image.data(), image.size());
    RETURN_IF_ERROR(device.WriteBack());
  }
  ASSIGN_OR_RETURN(adapters_[adapter], DeviceAdapter::Create(layout, lora, spec_.num_layers,
                                                             tp_rank_, geometry_, pages, device));
  return absl::OkStatus();
}

uint64_t StepRig::StepBytes(const StepCase& c) const {
  uint64_t bytes = weights_->device_bytes();
  if (!spec_.tie_word_embeddings) {
    bytes -= uint64_t{1} * tp_.shards[tp_rank_].vocab.size() * spec_.hidden_size *
             DTypeBytes(options_.dtype);
  }
  const uint64_t positions = options_.context + options_.steps / 2;
  bytes += c.rows * positions * KvBytesPerToken(spec_, tp_, backend_.compute_type);
  for (int i = 0; i < std::min(c.rows, c.adapters); ++i) {
    if (c.lora_rank == 0 || LoraRankOf(i) == c.lora_rank) bytes += adapter_bytes_[i];
  }
  return bytes;
}

absl::StatusOr<double> StepRig::LargestShare(int lora_rank) const {
  const LoraSpec lora = AllLinear(spec_, lora_rank);
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, lora, tp_, options_.sharding, backend_.compute_type,
                                         geometry_.page_bytes));
  ASSIGN_OR_RETURN(const TpPlan one, MakeTpPlan(spec_, 1));
  ASSIGN_OR_RETURN(const AdapterLayout whole,
                   AdapterLayout::Create(spec_, lora, one, options_.sharding, backend_.compute_type,
                                         geometry_.page_bytes));
  uint64_t most = 0;
  for (int r = 0; r < tp_.tp_size(); ++r) most = std::max(most, layout.row_bytes(r));
  return static_cast<double>(most) / static_cast<double>(whole.row_bytes(0));
}

double StepRig::PrefillFlops() const {
  double weights = 0;  // of a layer
  for (const Module module : kAllModules) {
    weights += 1.0 * spec_.in_features(module) * spec_.out_features(module);
  }
  const double tokens = options_.context;
  // A token sees itself and the tokens before it; QKᵀ and PV.
  const double pairs = tokens * (tokens + 1) / 2;
  const double attention = 4.0 * spec_.num_heads * spec_.head_dim * pairs;
  const double head = 2.0 * spec_.vocab_size * spec_.hidden_size;
  return options_.rows * (spec_.num_layers * (2.0 * tokens * weights + attention) + head);
}

}  // namespace rootstock
