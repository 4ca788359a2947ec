#include "tests/perf/step_rig.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "worker/device/cpu_device.h"
#include "worker/parallel/make_communicator.h"
#include "worker/parallel/node.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChunk = 2048;  // prompt tokens of a prefill step

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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
  const Place place = FindPlace();
  tp_rank_ = place.tp_rank;
  ASSIGN_OR_RETURN(tp_, MakeTpPlan(spec_, place.tp_size));
  if (options_.cuda) {
    ASSIGN_OR_RETURN(backend_, MakeCudaBackend(place.local_rank, options_.dtype));
  } else {
    backend_ = MakeCpuBackend(threads_);
  }
  if (place.tp_size > 1) {
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
  ASSIGN_OR_RETURN(model_, Model::Create(spec_, tp_, tp_rank_, parts,
                                         {std::max(kChunk, options_.rows), options_.rows,
                                          options_.rows, positions, options_.rows}));
  RETURN_IF_ERROR(options_.lora_rank > 0 ? MakeRandomAdapters() : LoadFiles());
  const uint32_t row_pages = (positions + page_tokens_ - 1) / page_tokens_;
  for (int i = 0; i < options_.rows; ++i) {
    Row& row = rows_.emplace_back();
    for (uint32_t p = 0; p < row_pages; ++p) row.pages.push_back(next_page_++);
  }
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
  const uint64_t token_bytes = KvBytesPerToken(spec_, tp_, backend_.compute_type);
  if (options_.cuda) {
    while (page_tokens_ < 64 && page_tokens_ * token_bytes < uint64_t{1} << 20) page_tokens_ *= 2;
  }
  const int positions = options_.context + options_.steps;
  const uint32_t row_pages = (positions + page_tokens_ - 1) / page_tokens_;
  const uint64_t page_bytes = token_bytes * page_tokens_;
  // Each adapter is bounded by its file; pages that stay unused are never touched.
  uint64_t adapter_bytes = 0;
  if (options_.lora_rank > 0) {
    for (const Module module : kAllModules) {
      adapter_bytes += uint64_t{1} * spec_.num_layers * options_.lora_rank * 4 *
                       (spec_.in_features(module) + spec_.out_features(module));
    }
  }
  for (const auto& dir : options_.adapter_dirs) {
    ASSIGN_OR_RETURN(const PeftAdapter adapter, LoadPeftAdapter(dir, spec_, PeftLimits{}));
    blobs_.push_back(EncodeCanonical(adapter, spec_));
    adapter_bytes = std::max<uint64_t>(adapter_bytes, 4 * blobs_.back().size());
  }
  GeometryRequest request;
  request.page_tokens = page_tokens_;
  request.num_pages = 1 + options_.rows * row_pages +
                      options_.adapters * static_cast<uint32_t>(adapter_bytes / page_bytes + 2);
  ASSIGN_OR_RETURN(geometry_, MakeGeometry(spec_, tp_, backend_.compute_type, request));
  ASSIGN_OR_RETURN(slab_, Slab::Create(*backend_.device, geometry_));
  return absl::OkStatus();
}

absl::Status StepRig::LoadFiles() {
  for (int i = 0; i < options_.adapters && !blobs_.empty(); ++i) {
    const std::string& blob = blobs_[i % blobs_.size()];
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(blob.data()),
                                         blob.size());
    ASSIGN_OR_RETURN(const CanonicalAdapter adapter, CanonicalAdapter::Parse(bytes, spec_));
    ASSIGN_OR_RETURN(const AdapterLayout layout,
                     AdapterLayout::Create(spec_, adapter.spec(), tp_, LoraSharding::kReplicated,
                                           backend_.compute_type, geometry_.page_bytes));
    std::vector<PageId> pages;
    for (uint32_t p = 0; p < layout.num_pages(); ++p) pages.emplace_back(next_page_++);
    RETURN_IF_ERROR(slab_->WriteAdapter(adapter, layout, tp_rank_, pages, *backend_.device));
    ASSIGN_OR_RETURN(auto placed,
                     DeviceAdapter::Create(layout, adapter.spec(), spec_.num_layers, tp_rank_,
                                           geometry_, std::move(pages), *backend_.device));
    adapters_.push_back(std::move(placed));
  }
  return absl::OkStatus();
}

absl::Status StepRig::MakeRandomAdapters() {
  const LoraSpec lora = AllLinear(spec_, options_.lora_rank);
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, lora, tp_, LoraSharding::kReplicated,
                                         backend_.compute_type, geometry_.page_bytes));
  Device& device = *backend_.device;
  std::vector<std::byte> image(geometry_.page_bytes);
  for (int i = 0; i < options_.adapters; ++i) {
    std::vector<PageId> pages;
    for (uint32_t p = 0; p < layout.num_pages(); ++p) pages.emplace_back(next_page_++);
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
    ASSIGN_OR_RETURN(auto placed, DeviceAdapter::Create(layout, lora, spec_.num_layers, tp_rank_,
                                                        geometry_, std::move(pages), device));
    adapters_.push_back(std::move(placed));
  }
  return absl::OkStatus();
}

void StepRig::AppendRow(int row, int position, int count, int adapters, bool chained,
                        ForwardBatch& batch) {
  const int begin = static_cast<int>(batch.token_ids.size());
  for (int i = 0; i < count; ++i) {
    batch.token_ids.push_back(chained ? LastTokenOf(row)
                                      : static_cast<int32_t>(random_() % spec_.vocab_size));
    batch.positions.push_back(position + i);
  }
  const size_t pages = (position + count + page_tokens_ - 1) / page_tokens_;
  batch.rows.push_back({begin, count, position, std::span(rows_[row].pages).first(pages)});
  if (adapters > 0) {
    batch.segments.push_back({begin, begin + count, adapters_[row % adapters].get(), 1.0f});
  }
}

absl::StatusOr<double> StepRig::Prefill(int adapters) {
  const Clock::time_point start = Clock::now();
  // Chunks hold several rows while there is room, as a scheduler does.
  ForwardBatch batch;
  const auto run = [&]() -> absl::Status {
    if (batch.token_ids.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(model_->Forward(batch).status());
    batch = {};
    return absl::OkStatus();
  };
  for (int row = 0; row < options_.rows; ++row) {
    for (int at = 0; at < options_.context;) {
      const int room = kChunk - static_cast<int>(batch.token_ids.size());
      const int count = std::min(room, options_.context - at);
      AppendRow(row, at, count, adapters, /*chained=*/false, batch);
      at += count;
      if (at == options_.context) {
        batch.logit_tokens.push_back(static_cast<int32_t>(batch.token_ids.size()) - 1);
      }
      if (static_cast<int>(batch.token_ids.size()) == kChunk) RETURN_IF_ERROR(run());
    }
  }
  RETURN_IF_ERROR(run());
  RETURN_IF_ERROR(backend_.device->Wait(backend_.device->Mark()));
  return SecondsSince(start);
}

absl::Status StepRig::Start(int rows, int adapters, int step) {
  ForwardBatch batch;
  std::vector<SampleOrder> orders(rows);
  for (int row = 0; row < rows; ++row) {
    AppendRow(row, options_.context + step, 1, adapters, /*chained=*/step > 0, batch);
    batch.logit_tokens.push_back(row);
    orders[row].params = &greedy_;
    orders[row].slot = static_cast<uint32_t>(row);
  }
  ASSIGN_OR_RETURN(const float* logits, model_->Forward(batch));
  if (tp_rank_ == 0) RETURN_IF_ERROR(backend_.sampler->Sample(logits, orders));
  if (communicator_->size() > 1) {
    RETURN_IF_ERROR(
        communicator_->Broadcast(backend_.sampler->chosen(), rows * sizeof(int32_t), 0));
    if (tp_rank_ != 0) RETURN_IF_ERROR(backend_.sampler->Follow(orders));
  }
  marks_.push_back(backend_.device->Mark());
  communicator_->Watch();
  return absl::OkStatus();
}

absl::Status StepRig::Finish() {
  const uint64_t mark = marks_.front();
  marks_.pop_front();
  return tp_rank_ == 0 ? backend_.sampler->Collect().status() : backend_.device->Wait(mark);
}

absl::StatusOr<std::vector<double>> StepRig::Decode(int rows, int adapters) {
  std::vector<double> seconds;
  RETURN_IF_ERROR(Start(rows, adapters, 0));
  Clock::time_point before = Clock::now();
  for (int step = 1; step <= options_.steps; ++step) {
    // On the host's processor a step has run when it was started.
    if (!backend_.asynchronous) RETURN_IF_ERROR(Finish());
    if (!backend_.asynchronous) before = Clock::now();
    if (step < options_.steps) RETURN_IF_ERROR(Start(rows, adapters, step));
    if (backend_.asynchronous) RETURN_IF_ERROR(Finish());
    const Clock::time_point now = Clock::now();
    if (step >= 3 && step < options_.steps) {  // the first ones warm up
      seconds.push_back(std::chrono::duration<double>(now - before).count());
    }
    before = now;
  }
  return seconds;
}

absl::StatusOr<double> StepRig::DecodeUnwatched(int rows, int adapters) {
  const auto run = [&](int steps) -> absl::StatusOr<double> {
    const Clock::time_point start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      ForwardBatch batch;
      for (int row = 0; row < rows; ++row) {
        AppendRow(row, options_.context + step, 1, adapters, /*chained=*/true, batch);
        batch.logit_tokens.push_back(row);
      }
      RETURN_IF_ERROR(model_->Forward(batch).status());
    }
    RETURN_IF_ERROR(backend_.device->Wait(backend_.device->Mark()));
    return SecondsSince(start);
  };
  ASSIGN_OR_RETURN(const double few, run(4));
  ASSIGN_OR_RETURN(const double many, run(options_.steps));
  return (many - few) / (options_.steps - 4);
}

uint64_t StepRig::StepBytes(int rows, int adapters) const {
  uint64_t bytes = weights_->device_bytes();
  if (!spec_.tie_word_embeddings) {
    bytes -= uint64_t{1} * tp_.shards[tp_rank_].vocab.size() * spec_.hidden_size *
             DTypeBytes(options_.dtype);
  }
  const uint64_t positions = options_.context + options_.steps / 2;
  bytes += rows * positions * KvBytesPerToken(spec_, tp_, backend_.compute_type);
  for (const Module module : kAllModules) {
    const int whole =
        IsRowParallel(module) ? spec_.out_features(module) : spec_.in_features(module);
    bytes += uint64_t{1} * std::min(rows, adapters) * spec_.num_layers * options_.lora_rank *
             DTypeBytes(backend_.compute_type) *
             (tp_.sharded_features(tp_rank_, module).size() + whole);
  }
  return bytes;
}

}  // namespace rootstock
