// A projection with its consumer at the shapes of a model, for the benches of the LoRA kernels.
#pragma once

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation/activation_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "tests/perf/lora/lora_bench_data.h"

namespace rootstock::kernels::cuda {

enum class SiteKind { kQkv, kO, kGateUp, kDown };
constexpr std::array<const char*, 4> kSiteNames = {"qkv", "o", "gate_up", "down"};
// Of a layer.
struct SiteShape {
  const char* name;
  int width;
  int ffn;
  HeadShape heads;
};
constexpr SiteShape k8B = {"8B", 4096, 14336, {32, 8, 128}};
constexpr SiteShape k13B = {"13B", 5120, 13824, {40, 40, 128}};

// Takes `--shape NAME` out of a command line; 8B where it names none, nothing where it names
// another than these.
inline std::optional<SiteShape> TakeShape(std::vector<std::string>& args) {
  const auto at = std::find(args.begin(), args.end(), "--shape");
  if (at == args.end()) return k8B;
  const std::string name = at + 1 == args.end() ? "" : at[1];
  for (const SiteShape& shape : {k8B, k13B}) {
    if (name != shape.name) continue;
    args.erase(at, at + 2);
    return shape;
  }
  return std::nullopt;
}

// UTC, 2026-11-30.
inline std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

inline LoraTargets SiteTargets(SiteKind kind, const SiteShape& shape) {
  LoraTargets t;
  const auto add = [&t](int module, int features) {
    t.module[t.count] = module;
    t.column[t.count] = t.count == 0 ? 0 : t.column[t.count - 1] + t.features[t.count - 1];
    t.features[t.count++] = features;
  };
  const int kv = shape.heads.num_kv_heads * shape.heads.head_dim;
  t.in = kind == SiteKind::kDown ? shape.ffn : shape.width;
  if (kind == SiteKind::kQkv) add(0, shape.width), add(1, kv), add(2, kv);
  if (kind == SiteKind::kO) add(3, shape.width);
  if (kind == SiteKind::kGateUp) add(4, shape.ffn), add(5, shape.ffn);
  if (kind == SiteKind::kDown) add(6, shape.width);
  return t;
}

inline int SiteColumns(const LoraTargets& t) {
  return t.column[t.count - 1] + t.features[t.count - 1];
}

// The base site at `tokens` tokens with `layers` copies of its weights. *One thread.*
class BenchSite {
 public:
  BenchSite(const SiteShape& shape, SiteKind kind, int tokens, int layers, Linear* linear)
      : shape_(shape),
        kind_(kind),
        tokens_(tokens),
        linear_(linear),
        targets_(SiteTargets(kind, shape)),
        n_(SiteColumns(targets_)),
        weights_(RandomBf16(static_cast<size_t>(n_) * targets_.in * layers, 0.02f)),
        x_(RandomBf16(static_cast<size_t>(tokens) * targets_.in, 1.0f)),
        y_(RandomBf16(static_cast<size_t>(tokens) * n_, 1.0f)),
        out_(RandomBf16(static_cast<size_t>(tokens) * shape.ffn, 1.0f)),
        residual_(std::vector<float>(static_cast<size_t>(tokens) * shape.width, 0.5f)),
        weight_(std::vector<float>(shape.width, 1.0f)),
        angles_(std::vector<float>(size_t{8192} * 64, 0.7f)),
        kv_(PageBytes() * (tokens + 1)) {
    std::vector<int32_t> positions;
    std::vector<uint32_t> pages;
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(t * 37 % 8192);
      pages.push_back(1 + t);
    }
    positions_ = std::make_unique<DeviceArray<int32_t>>(positions);
    pages_ = std::make_unique<DeviceArray<uint32_t>>(pages);
  }

  std::string Gemm(int layer, cudaStream_t stream) { return linear_->Run(Args(layer), stream); }
  // The site with LoRA as a step runs it; without if targets.count is 0.
  void Run(int layer, const LoraStep& step, const LoraTargets& targets, cudaStream_t stream) {
    LinearArgs args = Args(layer);
    if (is_long()) return RunLong(args, step, targets, stream);
    const LinearShrink shrink{step, targets, targets};
    args.shrink = targets.count > 0 ? &shrink : nullptr;
    if (kind_ == SiteKind::kGateUp && linear_->Gates(args)) {
      args.gated = true;
      args.out = out_->get();
      linear_->Run(args, stream);
      return;
    }
    if (args.shrink != nullptr && !linear_->Shrinks(args)) {
      args.shrink = nullptr;
      args.shares = linear_->LetsIn(args);
      if (!args.shares) LoraShrink(step, targets, x_->get(), tokens_, stream);
    }
    linear_->Run(args, stream);
    if (args.shares) LoraShrink(step, targets, x_->get(), tokens_, stream, /*x_ready=*/true);
    Consume(step, targets, stream);
  }

  void Shrink(const LoraStep& step, const LoraTargets& targets, cudaStream_t stream) {
    LoraShrink(step, targets, x_->get(), tokens_, stream);
  }
  // Without LoRA if targets.count is 0.
  void Consume(const LoraStep& step, const LoraTargets& targets, cudaStream_t stream) {
    if (kind_ == SiteKind::kQkv) {
      RopeArgs args{Type::kBF16,   y_->get(), positions_->get(),
                    pages_->get(), tokens_,   shape_.heads};
      args.cos = args.sin = angles_.get();
      args.kv = {kv_.get(), PageBytes(), 0, 16};
      RopeWriteKv(args, step, targets, stream);
    } else if (kind_ == SiteKind::kGateUp) {
      SiluMul({Type::kBF16, y_->get(), shape_.ffn, tokens_, out_->get()}, step, targets, stream);
    } else {
      AddNormArgs args{Type::kBF16, residual_.get(), y_->get(), weight_.get(),
                       1e-5f,       shape_.width,    tokens_};
      args.out = out_->get();
      AddRmsNorm(args, step, targets, stream);
    }
  }
  const LoraTargets& targets() const { return targets_; }
  bool is_long() const { return tokens_ > kDecodeTokens; }

 private:
  void RunLong(LinearArgs args, const LoraStep& step, const LoraTargets& targets,
               cudaStream_t stream) {
    LinearExpand expand{step, targets};
    LoraTargets left = targets;
    if (targets.count > 0) args.expand = &expand;
    args.gated = kind_ == SiteKind::kGateUp;
    const int sms =
        targets.count > 0 && linear_->Expands(args) ? linear_->SparesSms(args, targets) : 0;
    args.gated = false;
    expand.beside = sms > 0;
    if (sms > 0) {
      LoraShrinkBeside(step, targets, x_->get(), sms, stream);
    } else if (targets.count > 0) {
      LoraShrink(step, targets, x_->get(), tokens_, stream);
    }
    if (kind_ == SiteKind::kGateUp && linear_->Gates(args)) {
      args.gated = true;
      args.out = out_->get();
      linear_->Run(args, stream);
      return;
    }
    if (args.expand != nullptr && linear_->Expands(args)) {
      left.count = 0;
    } else {
      args.expand = nullptr;
    }
    linear_->Run(args, stream);
    Consume(step, left, stream);
  }

  LinearArgs Args(int layer) const {
    LinearArgs args;
    args.x = x_->get();
    args.m = tokens_;
    args.w = weights_->get() + static_cast<size_t>(n_) * targets_.in * 2 * layer;
    args.n = n_;
    args.k = targets_.in;
    args.out = y_->get();
    return args;
  }
  size_t PageBytes() const {
    return size_t{2} * 16 * shape_.heads.num_kv_heads * shape_.heads.head_dim * 2;
  }

  const SiteShape shape_;
  SiteKind kind_;
  int tokens_;
  Linear* linear_;
  LoraTargets targets_;
  int n_;
  std::unique_ptr<DeviceArray<std::byte>> weights_, x_, y_, out_;
  DeviceArray<float> residual_, weight_, angles_;
  DeviceArray<std::byte> kv_;
  std::unique_ptr<DeviceArray<int32_t>> positions_;
  std::unique_ptr<DeviceArray<uint32_t>> pages_;
};

}  // namespace rootstock::kernels::cuda
