// Times of paged attention: one JSON object a line. KV is read from 32 layers in turn, which is
// more than the L2 cache holds.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "kernels/attention/attention_bench_step.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr double kReadBytesPerUs = 4.39e6;  // what a plain read kernel gets on an H200

// What a layer of the graph holds.
enum class Layer { kAttention, kNeighbours, kAll };

// Median over replays of a graph of all layers.
double MicrosecondsALayer(PagedAttention& attention, const BenchStep& step, Neighbours* neighbours,
                          Layer layer) {
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  Check(attention.Plan(step.batch, stream));
  Check(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int l = 0; l < kBenchLayers; ++l) {
    if (layer != Layer::kAttention) neighbours->Before(l, stream);
    if (layer != Layer::kNeighbours) {
      Check(attention.Run(step.LayerKv(l), step.qkv, step.out, stream));
    }
    if (layer != Layer::kAttention) neighbours->After(l, stream);
  }
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 14; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(exec, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  Check(cudaGraphExecDestroy(exec));
  Check(cudaGraphDestroy(graph));
  Check(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1000.0 / kBenchLayers;
}

// Prints the case; returns µs a layer.
double Measure(const Measured& m, const Pool& pool) {
  const BenchStep step(m, pool);
  std::string error;
  const auto attention = MakePagedAttention(step.shapes, &error);
  Check(error);
  const double us = MicrosecondsALayer(*attention, step, nullptr, Layer::kAttention);
  std::printf(
      "{\"case\": \"%s\", \"heads\": \"%d/%d\", \"head_dim\": %d, \"rows\": %d, \"kv_len\": %d, "
      "\"pool_gb\": %d, \"us\": %.2f, ",
      m.name, m.heads.num_heads, m.heads.num_kv_heads, m.heads.head_dim, m.rows, m.kv_len,
      m.pool_gb, us);
  if (m.q_len == 1) {
    Neighbours neighbours(step);
    const double all = MicrosecondsALayer(*attention, step, &neighbours, Layer::kAll);
    const double others = MicrosecondsALayer(*attention, step, &neighbours, Layer::kNeighbours);
    std::printf("\"read_us\": %.2f, \"step_us\": %.2f, \"layer_us\": %.2f}\n",
                step.KvBytes() / kReadBytesPerUs, all - others, all);
  } else {
    std::printf("\"q_len\": %d, \"tflops\": %.1f}\n", m.q_len, step.Flops(m) / us * 1e-6);
  }
  std::fflush(stdout);
  return us;
}

}  // namespace
}  // namespace rootstock::kernels::cuda

// An argument: only cases whose name holds it.
int main(int argc, char** argv) {
  using rootstock::kernels::cuda::HeadShape;
  using rootstock::kernels::cuda::Measured;
  const HeadShape k8B = {32, 8, 128}, k13B = {40, 40, 128}, kSmall = {32, 8, 64};
  std::vector<Measured> cases;
  for (int kv_len : {1024, 1030, 1088}) {
    for (int rows : {1, 16, 64, 256}) cases.push_back({"decode", k8B, rows, 1, kv_len});
  }
  for (int gb : {9, 16, 32, 64, 110}) {
    for (int rows : {1, 16, 64}) cases.push_back({"pool", k8B, rows, 1, 1024, false, 16, gb});
    cases.push_back({"pool", k8B, 256, 1, 480, false, 16, gb});
  }
  for (int rows : {1, 16, 64})
    cases.push_back({"decode pages of 32", k8B, rows, 1, 1024, false, 32});
  for (int rows : {16, 64}) cases.push_back({"decode ragged", k8B, rows, 1, 1024, true});
  for (int rows : {1, 16}) cases.push_back({"decode", k8B, rows, 1, 16384});
  for (int rows : {1, 16, 64}) cases.push_back({"decode", k13B, rows, 1, 1024});
  for (int rows : {1, 16, 64}) cases.push_back({"decode", kSmall, rows, 1, 1024});
  for (int kv_len : {2048, 8192}) {
    cases.push_back({"prefill", k8B, 1, 2048, kv_len});
    cases.push_back({"prefill", kSmall, 1, 2048, kv_len});
  }
  cases.push_back({"prefill 16 prompts", k8B, 16, 1024, 1024});
  size_t free = 0, all = 0;
  rootstock::kernels::cuda::Check(cudaMemGetInfo(&free, &all));
  const rootstock::kernels::cuda::Pool pool(free - (size_t{8} << 30));
  const std::string only = argc > 1 ? argv[1] : "";
  for (const Measured& m : cases) {
    if (std::string(m.name).find(only) != std::string::npos) {
      rootstock::kernels::cuda::Measure(m, pool);
    }
  }
}
