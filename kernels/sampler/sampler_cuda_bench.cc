// Times Sample over graph replays, one JSON line a case; logits rotate through more memory than the
// L2 holds, or ("warm") are those of the launch before.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "kernels/sampler/sampler_cuda_testing.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kVocab = 128256;
constexpr int kReplays = 9;
constexpr int kTop = 20;

struct BenchCase {
  std::string name;
  SampleRow row;
  bool greedy_only = false;
};

std::vector<BenchCase> BenchCases() {
  std::vector<BenchCase> cases;
  const auto add = [&](std::string name, float temperature, int top_k, float top_p,
                       int num_logprobs) -> BenchCase& {
    BenchCase c{.name = std::move(name)};
    c.row.temperature = temperature;
    c.row.top_k = top_k;
    c.row.top_p = top_p;
    c.row.num_logprobs = num_logprobs;
    return cases.emplace_back(c);
  };
  add("greedy", 0, 0, 1, -1).greedy_only = true;
  add("greedy in a mixed launch", 0, 0, 1, -1);
  add("temperature", 0.8f, 0, 1, -1);
  add("top-k 50", 0.8f, 50, 1, -1);
  add("top-p 0.9", 0.8f, 0, 0.9f, -1);
  add("top-k 50 top-p 0.9", 0.8f, 50, 0.9f, -1);
  add("greedy, logprobs 0", 0, 0, 1, 0);
  add("greedy, logprobs 20", 0, 0, 1, kTop);
  add("top-k 50 top-p 0.9, logprobs 20", 0.8f, 50, 0.9f, kTop);
  return cases;
}

// Memory of the largest batch; logits [buffers, rows, vocab]. *One thread.*
struct BenchMemory {
  BenchMemory(int rows, int buffers, float sigma)
      : logits(static_cast<size_t>(buffers) * rows * kVocab),
        live(std::vector<int32_t>{rows}),
        outputs(4 * rows + 2 * rows * kTop) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<float> block(1 << 20);
    for (float& x : block) x = normal(random);
    const size_t total = static_cast<size_t>(buffers) * rows * kVocab;
    for (size_t at = 0; at < total; at += block.size()) {
      const size_t n = std::min(block.size(), total - at);
      Check(cudaMemcpy(logits.get() + at, block.data(), n * sizeof(float), cudaMemcpyHostToDevice),
            "upload");
    }
  }
  DeviceArray<float> logits;
  DeviceArray<int32_t> live;
  DeviceArray<int32_t> outputs;
};

// Median µs of a launch in a graph of one launch for each buffer.
double TimeLaunches(SampleStep step, size_t buffer_bytes, int buffers) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaEvent_t begin, end;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  const auto* logits = static_cast<const std::byte*>(step.logits);
  for (int b = 0; b < buffers; ++b) {
    step.logits = logits + b * buffer_bytes;
    Sample(step, stream);
  }
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  std::vector<double> us;
  for (int i = 0; i < kReplays + 2; ++i) {
    Check(cudaEventRecord(begin, stream), "record");
    Check(cudaGraphLaunch(replay, stream), "replay");
    Check(cudaEventRecord(end, stream), "record");
    Check(cudaEventSynchronize(end), "run");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 2) us.push_back(1000.0 * ms / buffers);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

// Cases whose label holds `filter`.
void BenchBatch(int rows, Type type, float sigma, const std::string& filter) {
  const size_t bytes = static_cast<size_t>(rows) * kVocab * SizeOf(type);
  const int buffers = static_cast<int>(std::clamp<size_t>((200 << 20) / bytes, 3, 60));
  const BenchMemory memory(rows, buffers, sigma);
  if (type == Type::kBF16) {
    const DeviceArray<float>& l = memory.logits;
    const std::vector<uint16_t> bf16 = ToBf16(l.Host());
    Check(cudaMemcpy(l.get(), bf16.data(), bf16.size() * 2, cudaMemcpyHostToDevice), "upload");
  }
  for (const BenchCase& c : BenchCases()) {
    const std::string label = "sampler " + c.name + (type == Type::kF32 ? ", f32" : ", bf16") +
                              ", B=" + std::to_string(rows) +
                              ", sigma=" + std::to_string(static_cast<int>(sigma));
    if (label.find(filter) == std::string::npos) continue;
    std::vector<SampleRow> host(rows, c.row);
    for (int i = 0; i < rows; ++i) {
      host[i].slot = i;
      host[i].seed = 1000 + i;
    }
    const DeviceArray<SampleRow> on_device(host);
    int32_t* const out = memory.outputs.get();
    const SampleStep step{.logits = memory.logits.get(),
                          .logits_type = type,
                          .vocab = kVocab,
                          .num_rows = rows,
                          .live_rows = memory.live.get(),
                          .rows = on_device.get(),
                          .greedy_only = c.greedy_only,
                          .max_top = kTop,
                          .last_tokens = out,
                          .tokens = out + rows,
                          .logprobs = reinterpret_cast<float*>(out + 2 * rows),
                          .ranks = out + 3 * rows,
                          .top_ids = out + 4 * rows,
                          .top_logprobs = reinterpret_cast<float*>(out + 4 * rows + rows * kTop)};
    std::printf("{\"case\": \"%s\", \"us\": %.2f}\n", label.c_str(),
                TimeLaunches(step, bytes, buffers));
    if (!c.greedy_only) continue;
    std::printf("{\"case\": \"%s, warm\", \"us\": %.2f}\n", label.c_str(),
                TimeLaunches(step, 0, buffers));
  }
}

}  // namespace
}  // namespace rootstock::kernels::cuda

int main(int argc, char** argv) {
  using rootstock::kernels::cuda::Type;
  for (const float sigma : {1.0f, 3.0f}) {
    for (const Type type : {Type::kF32, Type::kBF16}) {
      for (const int rows : {1, 16, 64, 256}) {
        rootstock::kernels::cuda::BenchBatch(rows, type, sigma, argc > 1 ? argv[1] : "");
      }
    }
  }
  return 0;
}
