// The sampler, and the small kernels between a layer's GEMMs.
#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/sampler/sampler_cuda.h"
#include "tests/perf/gpu_ops_parts.h"
#include "tests/perf/lora/lora_bench_site.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr int kVocab8B = 128256;
constexpr int kTop = 20;
constexpr size_t kRotatedLogits = size_t{200} << 20;

struct SamplerCase {
  const char* name;
  float temperature;
  int top_k;
  float top_p;
  int num_logprobs;
  bool greedy_only;
  // µs of FlashInfer's softmax + top-k/top-p at 1, 16, 64 and 256 rows on an H200; 0: no peer.
  std::array<double, 4> peer_us;
};
constexpr SamplerCase kSamplerCases[] = {
    {"greedy", 0, 0, 1, -1, true, {}},
    {"temperature", 0.8f, 0, 1, -1, false, {}},
    {"top-k 50", 0.8f, 50, 1, -1, false, {}},
    {"top-p 0.9", 0.8f, 0, 0.9f, -1, false, {}},
    {"top-k 50 top-p 0.9", 0.8f, 50, 0.9f, -1, false, {28, 40, 81, 212}},
    {"greedy, logprobs 20", 0, 0, 1, kTop, false, {}},
};

// Logits [buffers, rows, vocab] and outputs for `rows`. *One thread.*
class SamplerRows {
 public:
  SamplerRows(int rows, cuda::Type type, float sigma)
      : rows_(rows),
        type_(type),
        bytes_(size_t{1} * rows * kVocab8B * cuda::SizeOf(type)),
        buffers_(static_cast<int>(std::clamp<size_t>(kRotatedLogits / bytes_, 3, 60))),
        logits_(bytes_ * buffers_),
        live_(std::vector<int32_t>{rows}),
        out_(size_t{1} * rows * (4 + 2 * kTop)),
        scratch_(std::max<size_t>(cuda::SampleScratchBytes(rows, kVocab8B), 1)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<float> block(1 << 20);
    for (float& x : block) x = normal(random);
    const std::vector<std::byte> encoded = cuda::Encode(type, block);
    for (size_t at = 0; at < bytes_ * buffers_; at += encoded.size()) {
      cuda::CheckCuda(
          cudaMemcpy(logits_.get() + at, encoded.data(),
                     std::min(encoded.size(), bytes_ * buffers_ - at), cudaMemcpyHostToDevice),
          "logits");
    }
  }

  // µs of a launch; cold: each reads other logits.
  double Time(const SamplerCase& c, bool cold) const {
    std::vector<cuda::SampleRow> rows(rows_);
    for (int i = 0; i < rows_; ++i) {
      rows[i].temperature = c.temperature;
      rows[i].top_k = c.top_k;
      rows[i].top_p = c.top_p;
      rows[i].num_logprobs = c.num_logprobs;
      rows[i].slot = i;
      rows[i].seed = 1000 + i;
    }
    const cuda::DeviceArray<cuda::SampleRow> on_device(rows);
    int32_t* const out = out_.get();
    cuda::SampleStep step;
    step.logits_type = type_;
    step.vocab = kVocab8B;
    step.num_rows = rows_;
    step.live_rows = live_.get();
    step.rows = on_device.get();
    step.greedy_only = c.greedy_only;
    step.max_top = kTop;
    step.scratch = scratch_.get();
    step.last_tokens = out;
    step.tokens = out + rows_;
    step.logprobs = reinterpret_cast<float*>(out + 2 * rows_);
    step.ranks = out + 3 * rows_;
    step.top_ids = out + 4 * rows_;
    step.top_logprobs = reinterpret_cast<float*>(out + (4 + kTop) * rows_);
    return MicrosecondsEach(buffers_, [&](int buffer, cudaStream_t stream) {
      step.logits = logits_.get() + (cold ? buffer * bytes_ : 0);
      cuda::Sample(step, stream);
      return std::string();
    });
  }

 private:
  const int rows_;
  const cuda::Type type_;
  const size_t bytes_;  // of a buffer
  const int buffers_;
  cuda::DeviceArray<std::byte> logits_;
  cuda::DeviceArray<int32_t> live_, out_;
  cuda::DeviceArray<std::byte> scratch_;
};

void AddSampler(const SamplerRows& rows, const SamplerCase& c, const std::string& name, bool f32,
                int size, std::vector<BenchResult>& results) {
  constexpr int kRowsOfPeers[] = {1, 16, 64, 256};
  const double us = rows.Time(c, /*cold=*/true);
  const bool bounded = c.greedy_only && size == 64;
  results.push_back({bounded ? "greedy" : "", name, us, bounded ? 10.0 : 0, "lower", "us"});
  if (c.greedy_only) {
    results.push_back({"", name + ", logits in the cache", rows.Time(c, false), 0, "lower", "us"});
  }
  for (int i = 0; i < 4 && f32; ++i) {
    if (kRowsOfPeers[i] != size || c.peer_us[i] == 0) continue;
    results.push_back(
        {"sampler", name + ", over FlashInfer", us / c.peer_us[i], 1, "lower", "ratio"});
  }
}

}  // namespace

void BenchSampler(const Ceilings& ceilings, std::vector<BenchResult>& results) {
  for (const cuda::Type type : {cuda::Type::kF32, cuda::Type::kBF16}) {
    for (const int size : {1, 16, 64, 256}) {
      for (const float sigma : {1.0f, 3.0f}) {
        const SamplerRows rows(size, type, sigma);
        const bool f32 = type == cuda::Type::kF32;
        const std::string of = absl::StrCat(f32 ? ", f32" : ", bf16", ", rows=", size,
                                            ", sigma=", static_cast<int>(sigma));
        for (const SamplerCase& c : kSamplerCases) {
          if (sigma != 3.0f && c.temperature == 0) continue;
          AddSampler(rows, c, absl::StrCat("sampler ", c.name, of), f32, size, results);
        }
        if (sigma != 3.0f) continue;
        const double floor =
            1.0 * size * kVocab8B * cuda::SizeOf(type) / ceilings.read_bytes_per_us;
        results.push_back({"", "sampler, floor" + of, floor, 0, "lower", "us"});
      }
    }
  }
}

// The consumers of the sites without LoRA.
void BenchNorms(const Ceilings& ceilings, cuda::Linear& linear, std::vector<BenchResult>& results) {
  struct Kind {
    cuda::SiteKind site;
    const char* name;
    double bytes_a_token;  // read and written
  };
  const Kind kinds[] = {
      {cuda::SiteKind::kO, "residual + norm", 4096 * (4.0 + 4.0 + 2.0 + 2.0)},
      {cuda::SiteKind::kQkv, "rope + KV write", 2.0 * (2 * 6144)},
      {cuda::SiteKind::kGateUp, "silu * mul", 2.0 * 3 * cuda::k8B.ffn},
  };
  for (const int tokens : {1, 64, 2048, 8192}) {
    for (const Kind& kind : kinds) {
      cuda::BenchSite site(cuda::k8B, kind.site, tokens, 1, &linear);
      const double us = MicrosecondsEach(16, [&](int, cudaStream_t stream) {
        site.Consume({}, {}, stream);
        return std::string();
      });
      const std::string name = absl::StrCat(kind.name, ", tokens=", tokens);
      results.push_back({"", name, us, 0, "lower", "us"});
      if (tokens < 2048) continue;  // launches, and the cache
      results.push_back({"", name + ", share of the read bandwidth",
                         kind.bytes_a_token * tokens / ceilings.read_bytes_per_us / us, 0, "higher",
                         "ratio"});
    }
  }
}

}  // namespace rootstock
