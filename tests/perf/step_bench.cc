#include "tests/perf/step_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/lora/peft_loader.h"
#include "worker/device/cpu_device.h"
#include "worker/model/model.h"
#include "worker/ops/cpu_ops.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr int kChunk = 512;  // prompt tokens of a prefill step

struct Row {
  std::vector<uint32_t> pages;
  const DeviceAdapter* adapter = nullptr;  // of LoRA steps
};

// One rank, its rows and its adapters. *One thread.*
class StepBench {
 public:
  explicit StepBench(const StepBenchOptions& options) : options_(options) {}

  absl::Status SetUp();
  // Seconds to run the prompts of all rows.
  absl::StatusOr<double> Prefill();
  // Seconds of each of options.steps decode steps after the prompts.
  absl::StatusOr<std::vector<double>> Decode(bool with_adapters);

 private:
  absl::Status LoadAdapters();
  absl::Status LoadOne(const std::string& blob);
  absl::StatusOr<double> Forward(const ForwardBatch& batch);
  uint32_t TakePage() { return next_page_++; }
  void AppendRow(Row& row, int position, int count, bool with_adapters, ForwardBatch& batch);

  const StepBenchOptions options_;
  int threads_ = 0;
  ModelSpec spec_;
  TpPlan tp_;
  PageGeometry geometry_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<CpuOps> ops_;
  std::unique_ptr<ThreadCommunicator> communicator_;
  std::unique_ptr<Model> model_;
  std::vector<std::string> blobs_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
  std::vector<Row> rows_;
  uint32_t next_page_ = 1;  // page 0 is scratch
  std::mt19937 random_{1};
};

absl::Status StepBench::SetUp() {
  threads_ = options_.threads > 0 ? options_.threads : CpuThreads(1);
  ASSIGN_OR_RETURN(spec_, LoadModelSpec(options_.model));
  ASSIGN_OR_RETURN(tp_, MakeTpPlan(spec_, 1));
  device_ = std::make_unique<CpuDevice>(threads_);
  LoadOptions load;
  load.dtype = options_.dtype;
  if (options_.dummy_weights) {
    ASSIGN_OR_RETURN(weights_, ModelWeights::Dummy(spec_, tp_, 0, *device_, 1, load));
  } else {
    ASSIGN_OR_RETURN(weights_, ModelWeights::Load(options_.model, spec_, tp_, 0, *device_, load));
  }
  const int positions = options_.context + options_.steps;
  const uint32_t row_pages = (positions + kPageTokens - 1) / kPageTokens;
  GeometryRequest request;
  request.page_tokens = kPageTokens;
  // Each adapter is bounded by its file; pages that stay unused are never touched.
  uint64_t adapter_bytes = 0;
  for (const auto& dir : options_.adapter_dirs) {
    ASSIGN_OR_RETURN(const PeftAdapter adapter, LoadPeftAdapter(dir, spec_, PeftLimits{}));
    blobs_.push_back(EncodeCanonical(adapter, spec_));
    adapter_bytes = std::max<uint64_t>(adapter_bytes, blobs_.back().size());
  }
  const uint64_t page_bytes = KvBytesPerToken(spec_, tp_, DType::kF32) * kPageTokens;
  const auto adapter_pages = static_cast<uint32_t>(4 * adapter_bytes / page_bytes + 2);
  request.num_pages = 1 + options_.rows * row_pages + options_.adapters * adapter_pages;
  ASSIGN_OR_RETURN(geometry_, MakeGeometry(spec_, tp_, DType::kF32, request));
  ASSIGN_OR_RETURN(slab_, Slab::Create(*device_, geometry_));
  ops_ = std::make_unique<CpuOps>(
      threads_, PagedMemory{slab_->data(), geometry_.page_bytes, geometry_.page_tokens});
  communicator_ = ThreadCommunicator::Self();
  const ModelParts parts{weights_.get(), device_.get(), ops_.get(), slab_.get(),
                         communicator_.get()};
  ASSIGN_OR_RETURN(
      model_, Model::Create(spec_, tp_, 0, parts, std::max(kChunk, options_.rows), options_.rows));
  RETURN_IF_ERROR(LoadAdapters());
  for (int i = 0; i < options_.rows; ++i) {
    Row row;
    for (uint32_t p = 0; p < row_pages; ++p) row.pages.push_back(TakePage());
    if (!adapters_.empty()) row.adapter = adapters_[i % adapters_.size()].get();
    rows_.push_back(std::move(row));
  }
  return absl::OkStatus();
}

absl::Status StepBench::LoadAdapters() {
  if (blobs_.empty()) return absl::OkStatus();
  for (int i = 0; i < options_.adapters; ++i) {
    RETURN_IF_ERROR(LoadOne(blobs_[i % blobs_.size()]));
  }
  return absl::OkStatus();
}

absl::Status StepBench::LoadOne(const std::string& blob) {
  ASSIGN_OR_RETURN(
      const CanonicalAdapter adapter,
      CanonicalAdapter::Parse({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()}, spec_));
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, adapter.spec(), tp_, LoraSharding::kReplicated,
                                         DType::kF32, geometry_.page_bytes));
  std::vector<PageId> pages;
  std::vector<std::byte*> pointers;
  for (uint32_t i = 0; i < layout.num_pages(); ++i) {
    pages.emplace_back(TakePage());
    pointers.push_back(slab_->page(pages.back()).data());
  }
  RETURN_IF_ERROR(WriteAdapterRows(adapter, layout, 0, pointers));
  ASSIGN_OR_RETURN(auto device_adapter,
                   DeviceAdapter::Create(layout, adapter.spec(), spec_.num_layers, 0, geometry_,
                                         std::move(pages)));
  adapters_.push_back(std::move(device_adapter));
  return absl::OkStatus();
}

void StepBench::AppendRow(Row& row, int position, int count, bool with_adapters,
                          ForwardBatch& batch) {
  const int begin = static_cast<int>(batch.token_ids.size());
  for (int i = 0; i < count; ++i) {
    batch.token_ids.push_back(static_cast<int32_t>(random_() % spec_.vocab_size));
    batch.positions.push_back(position + i);
  }
  const size_t pages = (position + count + kPageTokens - 1) / kPageTokens;
  batch.rows.push_back({begin, count, position, std::span(row.pages).first(pages)});
  if (with_adapters && row.adapter != nullptr) {
    batch.segments.push_back({begin, begin + count, row.adapter, 1.0f});
  }
}

absl::StatusOr<double> StepBench::Forward(const ForwardBatch& batch) {
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(model_->Forward(batch).status());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

absl::StatusOr<double> StepBench::Prefill() {
  double seconds = 0;
  for (Row& row : rows_) {
    for (int at = 0; at < options_.context; at += kChunk) {
      ForwardBatch batch;
      AppendRow(row, at, std::min(kChunk, options_.context - at), false, batch);
      batch.logit_tokens.push_back(static_cast<int32_t>(batch.token_ids.size()) - 1);
      ASSIGN_OR_RETURN(const double s, Forward(batch));
      seconds += s;
    }
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> StepBench::Decode(bool with_adapters) {
  std::vector<double> seconds;
  for (int step = 0; step < options_.steps; ++step) {
    ForwardBatch batch;
    for (Row& row : rows_) AppendRow(row, options_.context + step, 1, with_adapters, batch);
    for (int i = 0; i < options_.rows; ++i) batch.logit_tokens.push_back(i);
    ASSIGN_OR_RETURN(const double s, Forward(batch));
    if (step >= 2) seconds.push_back(s);  // the first ones warm up
  }
  return seconds;
}

}  // namespace

absl::StatusOr<std::vector<BenchResult>> RunStepBench(const StepBenchOptions& options) {
  if (options.rows < 1 || options.context < 1 || options.steps < 3 || options.rounds < 1) {
    return InvalidField(Reason::kInvalidArgument, "rows, context, steps, rounds", "",
                        "must be positive, steps at least 3");
  }
  StepBench bench(options);
  RETURN_IF_ERROR(bench.SetUp());
  ASSIGN_OR_RETURN(const double prefill, bench.Prefill());
  std::vector<double> base, lora;
  for (int round = 0; round < options.rounds; ++round) {
    ASSIGN_OR_RETURN(const std::vector<double> b, bench.Decode(false));
    base.insert(base.end(), b.begin(), b.end());
    ASSIGN_OR_RETURN(const std::vector<double> l, bench.Decode(true));
    lora.insert(lora.end(), l.begin(), l.end());
  }
  const std::string name = absl::StrCat("decode rows=", options.rows, " context=", options.context,
                                        " dtype=", DTypeName(options.dtype));
  const std::string mixed = absl::StrCat(name, " adapters=", options.adapters);
  return std::vector<BenchResult>{
      {"", name + " base, median", Quantile(base, 0.5) * 1e3, 0, "lower", "ms"},
      {"", name + " base, p99", Quantile(base, 0.99) * 1e3, 0, "lower", "ms"},
      {"", mixed + ", median", Quantile(lora, 0.5) * 1e3, 0, "lower", "ms"},
      {"", mixed + ", p99", Quantile(lora, 0.99) * 1e3, 0, "lower", "ms"},
      {"cpu lora overhead", mixed + " over base", Quantile(lora, 0.5) / Quantile(base, 0.5), 1.2,
       "lower", "ratio"},
      {"", absl::StrCat("prefill context=", options.context),
       options.rows * options.context / prefill, 0, "higher", "tokens/s"},
  };
}

}  // namespace rootstock
