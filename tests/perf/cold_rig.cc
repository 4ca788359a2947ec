#include "tests/perf/cold_rig.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/canonical.h"
#include "worker/device/cpu_device.h"
#include "worker/runtime/finish_load.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kStepTokens = 2048;
constexpr std::chrono::milliseconds kRest(100);
constexpr Epoch kEpoch{1, 1};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t TimesTakenOff() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

// bf16 numbers of magnitude 2^-8 to 2^-7.
std::vector<uint8_t> RandomHalves(size_t count, std::minstd_rand& random) {
  std::vector<uint8_t> out(2 * count);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    out[2 * i] = static_cast<uint8_t>(bits);
    out[2 * i + 1] = static_cast<uint8_t>(0x3b | (bits >> 8 & 0x80));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColdRig>> ColdRig::Create(const ColdBenchOptions& options) {
  std::unique_ptr<ColdRig> rig(new ColdRig(options));
  RETURN_IF_ERROR(rig->MakeContents());
  RETURN_IF_ERROR(rig->MakeModel());
  return rig;
}

absl::Status ColdRig::MakeContents() {
  ASSIGN_OR_RETURN(spec_, LoadModelSpec(options_.model));
  ASSIGN_OR_RETURN(tp_, MakeTpPlan(spec_, 1));
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    for (const Module module : kAllModules) {
      lora_.modules.push_back({layer, module, options_.lora_rank, 0.5f});
    }
  }
  for (int adapter = 0; adapter < kAdapters; ++adapter) {
    std::minstd_rand random(static_cast<uint32_t>(adapter + 1));
    std::vector<LoraWeights> weights;
    for (const LoraModule& m : lora_.modules) {
      const size_t rank = options_.lora_rank;
      LoraWeights& w = weights.emplace_back();
      w.a_dtype = w.b_dtype = DType::kBF16;
      w.a = RandomHalves(rank * spec_.in_features(m.module), random);
      w.b = RandomHalves(rank * spec_.out_features(m.module), random);
    }
    std::string content = EncodeCanonical(lora_, weights, spec_);
    digests_.push_back(Sha256Of(content));
    contents_[digests_.back()] = std::move(content);
  }
  return absl::OkStatus();
}

absl::Status ColdRig::MakeModel() {
  const int threads = options_.threads > 0 ? options_.threads : CpuThreads(1);
  Backend backend = MakeCpuBackend(threads);
  if (options_.cuda) {
    ASSIGN_OR_RETURN(backend, MakeCudaBackend(0, options_.dtype));
  }
  GeometryRequest request;
  if (options_.cuda) request.page_tokens = CudaPageTokens(spec_, tp_, backend.compute_type);
  const auto pages_of = [&](int tokens) { return tokens / request.page_tokens + 1; };
  pages_of_row_ = pages_of(options_.context + options_.steps + 32);
  pages_of_prompt_ = pages_of(options_.prompt_tokens);
  request.num_pages = 2;
  ASSIGN_OR_RETURN(const PageGeometry one, MakeGeometry(spec_, tp_, backend.compute_type, request));
  ASSIGN_OR_RETURN(AdapterLayout layout,
                   AdapterLayout::Create(spec_, lora_, tp_, LoraSharding::kReplicated,
                                         backend.compute_type, one.page_bytes));
  layout_ = std::make_unique<AdapterLayout>(std::move(layout));
  request.num_pages =
      1 + kAdapters * layout_->num_pages() + options_.rows * pages_of_row_ + pages_of_prompt_;
  ASSIGN_OR_RETURN(geometry_, MakeGeometry(spec_, tp_, backend.compute_type, request));
  ASSIGN_OR_RETURN(lane_, backend.device->MakeCopyLane());
  ASSIGN_OR_RETURN(from_, lane_->AllocateHost(adapter_bytes(), "bench"));
  ASSIGN_OR_RETURN(
      to_, backend.device->Allocate(size_t{layout_->num_pages()} * one.page_bytes, "bench"));
  AdapterTiers tiers;
  tiers.read = [this](const Digest& digest, const BlobSink& sink) {
    return GiveAll(contents_.at(digest), sink);
  };
  tiers.host_cache_bytes = uint64_t{kAdapters} * layout_->num_pages() * geometry_.page_bytes;
  ASSIGN_OR_RETURN(
      model_, LoadedModel::Create({options_.model, options_.dummy_weights, options_.dtype}, spec_,
                                  tp_, std::move(backend), geometry_, *self_, std::move(tiers)));
  runtime_ = std::make_unique<WorkerRuntime>(*model_, *self_);
  const auto longest = static_cast<uint32_t>(
      std::max(options_.prompt_tokens + 1, options_.context + options_.steps + 32));
  return runtime_
      ->Attach(kEpoch, {longest, static_cast<uint32_t>(options_.rows + 1), kStepTokens, 0})
      .status();
}

std::vector<PageId> ColdRig::PagesAt(uint32_t first, uint32_t count) const {
  std::vector<PageId> out;
  for (uint32_t i = 0; i < count; ++i) out.emplace_back(first + i);
  return out;
}

LoadAdapter ColdRig::LoadOf(int adapter) const {
  return {digests_[adapter], layout_->id(), LoraSharding::kReplicated,
          PagesAt(1 + adapter * layout_->num_pages(), layout_->num_pages())};
}

absl::StatusOr<CommandId> ColdRig::Begin(decltype(Command::kind) kind) {
  const CommandId id(++commands_);
  ASSIGN_OR_RETURN(const std::optional<Completion> done,
                   runtime_->Start({id, kEpoch, std::move(kind)}));
  if (done.has_value()) RETURN_IF_ERROR(done->outcome);
  return id;
}

// With nothing else running.
absl::Status ColdRig::Run(StepPlan plan) {
  RETURN_IF_ERROR(Begin(std::move(plan)).status());
  while (runtime_->num_running() > 0) {
    ASSIGN_OR_RETURN(const Completion done, runtime_->Finish());
    RETURN_IF_ERROR(done.outcome);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ColdRig::CopySeconds() {
  const CopyRun run{to_.data(), from_.data(), adapter_bytes()};
  return SecondsOf({&run, 1});
}

absl::StatusOr<double> ColdRig::CopyImageSeconds(int adapter) {
  const auto image =
      runtime_->loader().host().Find({digests_[adapter], layout_->id()}, /*for_load=*/false);
  if (image == nullptr) return absl::InternalError("the host cache is too small");
  std::vector<CopyRun> runs;
  std::byte* to = to_.data();
  for (const std::byte* const page : image->pages()) {
    if (runs.empty() || runs.back().from + runs.back().bytes != page) runs.push_back({to, page, 0});
    runs.back().bytes += geometry_.page_bytes;
    to += geometry_.page_bytes;
  }
  return SecondsOf(runs);
}

absl::StatusOr<double> ColdRig::SecondsOf(std::span<const CopyRun> runs) {
  std::promise<absl::Status> done;
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(lane_->Copy(runs));
  lane_->NotifyWhenDone([&done](absl::Status status) { done.set_value(std::move(status)); });
  RETURN_IF_ERROR(done.get_future().get());
  return SecondsSince(start);
}

absl::StatusOr<double> ColdRig::Stage(int adapter) {
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const CommandId id, Begin(PrefetchAdapter{digests_[adapter], layout_->id(),
                                                             LoraSharding::kReplicated, true}));
  RETURN_IF_ERROR(FinishLoad(*runtime_, id));
  return SecondsSince(start);
}

absl::StatusOr<double> ColdRig::Load(int adapter) {
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const CommandId id, Begin(LoadOf(adapter)));
  order_seconds_ = SecondsSince(start);
  RETURN_IF_ERROR(FinishLoad(*runtime_, id));
  return SecondsSince(start);
}

absl::Status ColdRig::Drop(int adapter) { return Begin(DropAdapter{digests_[adapter]}).status(); }

absl::StatusOr<double> ColdRig::FirstToken(int adapter, bool cold) {
  std::this_thread::sleep_for(kRest);
  const SequenceSlot slot(options_.rows);
  NewSequence sequence;
  sequence.slot = slot;
  sequence.num_prompt_tokens = sequence.num_tokens = options_.prompt_tokens;
  sequence.sampling.temperature = 0;
  sequence.spans = {{0, 0, {{digests_[adapter], 1.0f}}}};
  StepPlan plan{{sequence}, {}, cold};
  PlanRow row{slot, static_cast<uint32_t>(options_.prompt_tokens), 0, {}, {}, RowOutput::kToken};
  for (int t = 0; t < options_.prompt_tokens; ++t) row.tokens.push_back(t * 7 % spec_.vocab_size);
  row.pages = PagesAt(geometry_.num_pages - pages_of_prompt_, pages_of_prompt_);
  plan.rows.push_back(std::move(row));
  std::optional<CommandId> load;
  const Clock::time_point start = Clock::now();
  if (cold) {
    ASSIGN_OR_RETURN(load, Begin(LoadOf(adapter)));
  }
  RETURN_IF_ERROR(Run(std::move(plan)));
  const double seconds = SecondsSince(start);
  if (load.has_value()) RETURN_IF_ERROR(FinishLoad(*runtime_, *load));
  RETURN_IF_ERROR(Begin(ReleaseSlots{{slot}}).status());
  return seconds;
}

absl::Status ColdRig::StartRows() {
  if (position_ > 0) {
    ReleaseSlots all;
    for (int r = 0; r < options_.rows; ++r) all.slots.emplace_back(r);
    RETURN_IF_ERROR(Begin(std::move(all)).status());
  }
  position_ = options_.context;
  for (int r = 0; r < options_.rows; ++r) {
    NewSequence sequence;
    sequence.slot = SequenceSlot(r);
    sequence.num_prompt_tokens = sequence.num_tokens = options_.context;
    sequence.sampling.temperature = 0;
    sequence.spans = {{0, 0, {{digests_[0], 1.0f}}}};
    PlanRow row{sequence.slot, position_, 0, {}, {}, RowOutput::kToken};
    for (int t = 0; t < options_.context; ++t) {
      row.tokens.push_back((t * 7 + r * 31) % spec_.vocab_size);
    }
    row.pages = PagesAt(1 + kAdapters * layout_->num_pages() + r * pages_of_row_, pages_of_row_);
    RETURN_IF_ERROR(Run({{sequence}, {row}}));
  }
  return absl::OkStatus();
}

absl::Status ColdRig::TurnLoads() {
  if (!loading_.has_value()) {
    ASSIGN_OR_RETURN(loading_, Begin(LoadOf(1)));
    return absl::OkStatus();
  }
  const std::optional<absl::Status> outcome = runtime_->OutcomeOf(*loading_);
  if (!outcome.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(*outcome);
  RETURN_IF_ERROR(runtime_->Settle(*loading_, *outcome));
  RETURN_IF_ERROR(Drop(1));
  ++loads_beside_;
  ASSIGN_OR_RETURN(loading_, Begin(LoadOf(1)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ColdRig::Decode(int steps, bool loading) {
  constexpr int kWarm = 4;
  std::vector<double> seconds;
  loads_beside_ = 0;
  double shortest = 0;
  const int64_t before = TimesTakenOff();
  Clock::time_point last = Clock::now();
  for (int i = 0; i < steps + kWarm; ++i) {
    StepPlan plan;
    for (int r = 0; r < options_.rows; ++r) {
      plan.rows.push_back({SequenceSlot(r), 1, position_, {}, {}, RowOutput::kToken});
    }
    ++position_;
    RETURN_IF_ERROR(Begin(std::move(plan)).status());
    if (loading) {
      while (SecondsSince(last) < 0.01 * (i * 37 % 80) * shortest) {
      }
      RETURN_IF_ERROR(TurnLoads());
    }
    if (runtime_->num_running() > 1) RETURN_IF_ERROR(runtime_->Finish().status());
    const double step = SecondsSince(last);
    last = Clock::now();
    if (i < kWarm) continue;
    seconds.push_back(step);
    shortest = i == kWarm ? step : std::min(shortest, step);
  }
  taken_off_ = TimesTakenOff() - before;
  while (runtime_->num_running() > 0) RETURN_IF_ERROR(runtime_->Finish().status());
  if (loading_.has_value()) {
    RETURN_IF_ERROR(FinishLoad(*runtime_, *loading_));
    RETURN_IF_ERROR(Drop(1));
    loading_ = std::nullopt;
  }
  return seconds;
}

}  // namespace rootstock
