// Linear layers, attention and whole decode steps at SmolLM2-135M's shapes, with adapters or
// without.
// `--threads=N` (default: the cores there are) comes before Google Benchmark's own flags.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/cpu_device.h"
#include "worker/lora/device_adapter.h"
#include "worker/model/model.h"
#include "worker/ops/cpu_ops.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {
namespace {

int threads = CpuThreads(1);

ModelSpec SmolLm2() {
  ModelSpec spec;
  spec.num_layers = 30;
  spec.hidden_size = 576;
  spec.ffn_size = 1536;
  spec.num_heads = 9;
  spec.num_kv_heads = 3;
  spec.head_dim = 64;
  spec.vocab_size = 49152;
  spec.max_position = 8192;
  spec.tie_word_embeddings = true;
  spec.rope.theta = 100000.0;
  return spec;
}

// As many layers' matrices as no cache holds. Arguments: rows, outputs, inputs, bf16.
void Linear(benchmark::State& state) {
  const int m = static_cast<int>(state.range(0));
  const int n = static_cast<int>(state.range(1));
  const int k = static_cast<int>(state.range(2));
  const DType dtype = state.range(3) != 0 ? DType::kBF16 : DType::kF32;
  constexpr int kLayers = 30;
  CpuDevice device(threads);
  const size_t bytes = DTypeBytes(dtype) * n * k;
  const DeviceBuffer weights = *device.Allocate(kLayers * bytes, "weights");
  for (size_t i = 0; i < weights.bytes() / 2; ++i) weights.as<uint16_t>()[i] = 0x3c01;
  std::vector<float> x(static_cast<size_t>(m) * k, 0.5f), out(static_cast<size_t>(m) * n);
  CpuOps ops(threads, {});
  if (!ops.BeginStep({}).ok()) return state.SkipWithError("step");
  for (auto _ : state) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Matrix w{weights.data() + layer * bytes, dtype, n, k};
      ops.MatMul(x.data(), m, w, nullptr, out.data());
    }
  }
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * kLayers * bytes * state.iterations(), benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * kLayers * m * n * k * state.iterations(),
                                                 benchmark::Counter::kIsRate);
}

// Everything of one tp_rank, with all pages full of small numbers.
class Worker {
 public:
  explicit Worker(int max_tokens) : device_(threads) {
    const PageGeometry geometry = *MakeGeometry(spec_, tp_, DType::kF32, {16, 1500, 0});
    slab_ = *Slab::Create(device_, geometry);
    float* values = reinterpret_cast<float*>(slab_->data());
    const size_t count = size_t{geometry.num_pages} * geometry.page_bytes / sizeof(float);
    for (size_t i = 0; i < count; ++i) values[i] = 0.001f * static_cast<float>(i * 31 % 61) - 0.03f;
    weights_ = *ModelWeights::Dummy(spec_, tp_, 0, device_, 1, {});
    ops_ = std::make_unique<CpuOps>(
        threads, PagedMemory{slab_->data(), geometry.page_bytes, geometry.page_tokens});
    const ModelParts parts{weights_.get(), &device_, ops_.get(), slab_.get(), communicator_.get()};
    model_ = *Model::Create(spec_, tp_, 0, parts,
                            {max_tokens, max_tokens, max_tokens, spec_.max_position});
  }

  void AddAdapter(int lora_rank, const std::vector<Module>& modules) {
    LoraSpec lora;
    for (int layer = 0; layer < spec_.num_layers; ++layer) {
      for (const Module m : modules) lora.modules.push_back({layer, m, lora_rank, 0.5f});
    }
    const AdapterLayout layout = *AdapterLayout::Create(spec_, lora, tp_, LoraSharding::kReplicated,
                                                        DType::kF32, slab_->geometry().page_bytes);
    std::vector<PageId> pages;
    for (uint32_t i = 0; i < layout.num_pages(); ++i) pages.emplace_back(next_page_++);
    adapters_.push_back(*DeviceAdapter::Create(layout, lora, spec_.num_layers, 0, slab_->geometry(),
                                               std::move(pages), device_));
  }

  // `rows` sequences of `query` tokens after `context` others; row i runs with adapter i mod n.
  ForwardBatch Batch(int rows, int query, int context, int num_adapters) {
    ForwardBatch batch;
    tables_.assign(rows, {});
    uint32_t page = next_page_;
    for (int r = 0; r < rows; ++r) {
      for (int p = 0; p < context + query; p += 16) tables_[r].push_back(page++);
      const int begin = r * query;
      for (int i = 0; i < query; ++i) {
        batch.token_ids.push_back((r * 977 + i * 31) % spec_.vocab_size);
        batch.positions.push_back(context + i);
      }
      batch.rows.push_back({begin, query, context, tables_[r]});
      batch.logit_tokens.push_back(begin + query - 1);
      if (num_adapters > 0) {
        batch.segments.push_back({begin, begin + query, adapters_[r % num_adapters].get(), 1.0f});
      }
    }
    return batch;
  }

  Model& model() { return *model_; }

 private:
  const ModelSpec spec_ = SmolLm2();
  const TpPlan tp_ = *MakeTpPlan(spec_, 1);
  CpuDevice device_;
  std::unique_ptr<ThreadCommunicator> communicator_ = ThreadCommunicator::Self();
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuOps> ops_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
  uint32_t next_page_ = 1;
  std::vector<std::vector<uint32_t>> tables_;
};

void RunSteps(benchmark::State& state, Worker& worker, const ForwardBatch& batch) {
  double lora = 0;
  for (auto _ : state) {
    if (!worker.model().Forward(batch).ok()) return state.SkipWithError("step");
    const OpsStepStats& ops = worker.model().last_step().ops;
    lora += ops.lora_shrink.seconds + ops.lora_expand.seconds;
  }
  state.counters["lora_ms"] = 1e3 * lora / static_cast<double>(state.iterations());
  state.counters["lora_MB"] =
      1e-6 * static_cast<double>(worker.model().last_step().ops.lora_weight_bytes);
}

// Arguments: rows, context, adapters. The adapters are like the demo's: small, of mixed shape.
void DecodeStep(benchmark::State& state) {
  Worker worker(64);
  const std::vector<Module> all(kAllModules.begin(), kAllModules.end());
  for (int i = 0; i < 8; i += 4) {
    worker.AddAdapter(4, all);
    worker.AddAdapter(8, {Module::kQ, Module::kK, Module::kV, Module::kO});
    worker.AddAdapter(16, {Module::kQ, Module::kV});
    worker.AddAdapter(4, {Module::kGate, Module::kUp, Module::kDown});
  }
  RunSteps(state, worker,
           worker.Batch(static_cast<int>(state.range(0)), 1, static_cast<int>(state.range(1)),
                        static_cast<int>(state.range(2))));
}

// Arguments: prompt tokens, adapters.
void PrefillStep(benchmark::State& state) {
  Worker worker(512);
  worker.AddAdapter(16, {kAllModules.begin(), kAllModules.end()});
  RunSteps(state, worker,
           worker.Batch(1, static_cast<int>(state.range(0)), 0, static_cast<int>(state.range(1))));
}

BENCHMARK(Linear)
    ->ArgsProduct({{1, 4, 16, 64, 256}, {960}, {576}, {0, 1}})
    ->ArgsProduct({{1, 4, 16, 64, 256}, {576}, {1536}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(DecodeStep)
    ->Args({1, 128, 0})
    ->Args({1, 128, 1})
    ->Args({16, 128, 0})
    ->Args({16, 128, 1})
    ->Args({16, 128, 8})
    ->Args({16, 1024, 0})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(PrefillStep)
    ->Args({512, 0})
    ->Args({512, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) {
  if (argc > 1 && std::strncmp(argv[1], "--threads=", 10) == 0) {
    rootstock::threads = std::atoi(argv[1] + 10);
    --argc;
    ++argv;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
