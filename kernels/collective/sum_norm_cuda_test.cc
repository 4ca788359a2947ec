#include "kernels/collective/sum_norm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "kernels/collective/peer_ranks.h"
#include "kernels/lora/lora_case.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr int kIn = 2500;  // inputs of a rank: v in two parts
constexpr float kEps = 1e-5f;

struct Shape {
  Type type = Type::kBF16;
  int n = 0, tokens = 0;
  Mix mix = Mix::kNone;
  bool sliced = false;
};

// One rank's operands, on its device.
struct Part {
  std::unique_ptr<LoraCase> lora;
  SumNormLora targets;
  std::unique_ptr<DeviceArray<std::byte>> x, delta, out;
  std::unique_ptr<DeviceArray<float>> residual, weight;
};

struct Results {
  std::vector<float> residual, out;
};

class SumNorm : public testing::TestWithParam<int> {
 protected:
  std::vector<float> Random(size_t n, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> out(n);
    for (float& value : out) value = random_() % 32 == 0 ? -0.0f : normal(random_);
    return out;
  }
  LoraTargets Targets(const Shape& shape, int rank) const {
    LoraTargets targets{1, 1};
    targets.module[0] = 3;
    targets.in = kIn;
    targets.features[0] = shape.n;
    if (!shape.sliced) return targets;
    const int each = (shape.n / 8 + ranks_.size() - 1) / ranks_.size() * 8;
    targets.column[0] = std::min(shape.n, each * rank);
    targets.features[0] = std::min(shape.n - targets.column[0], each);
    return targets;
  }
  void MakeStep(const Shape& shape) {
    random_.seed(5);
    const size_t elements = size_t(shape.n) * shape.tokens;
    residual_ = Random(elements, 2.0f);
    weight_ = Random(shape.n);
    deltas_.clear();
    inputs_.clear();
    for (int r = 0; r < ranks_.size(); ++r) {
      deltas_.push_back(Random(elements));
      inputs_.push_back(Random(size_t(kIn) * shape.tokens));
      RoundTo(shape.type, deltas_.back());
      RoundTo(shape.type, inputs_.back());
    }
  }
  std::vector<float> RowOf(const std::vector<float>& x, int row, int width) const {
    return {x.begin() + size_t(row) * width, x.begin() + size_t(row + 1) * width};
  }
  // On the device. Of `only`, a token, if that is not negative.
  std::vector<Results> Run(const Shape& shape, int only = -1) {
    const int tokens = only < 0 ? shape.tokens : 1;
    const auto cut = [&](const std::vector<float>& x, int width) {
      return only < 0 ? x : RowOf(x, only, width);
    };
    std::vector<Part> parts(ranks_.size());
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      Part& p = parts[r];
      LoraCase all(shape.type, shape.tokens, Targets(shape, r));
      AddMix(shape.mix, &all);
      p.lora = std::make_unique<LoraCase>(only < 0 ? std::move(all) : all.Alone(only));
      if (only < 0) p.lora->Build();
      p.x = std::make_unique<DeviceArray<std::byte>>(Encode(shape.type, cut(inputs_[r], kIn)));
      p.delta =
          std::make_unique<DeviceArray<std::byte>>(Encode(shape.type, cut(deltas_[r], shape.n)));
      p.residual = std::make_unique<DeviceArray<float>>(cut(residual_, shape.n));
      p.weight = std::make_unique<DeviceArray<float>>(weight_);
      p.out =
          std::make_unique<DeviceArray<std::byte>>(size_t(tokens) * shape.n * SizeOf(shape.type));
      p.targets.step = p.lora->step();
      if (shape.mix != Mix::kNone) SetTargets(shape, r, p.targets);
    }
    ranks_.Settle();
    for (int r = 0; r < ranks_.size(); ++r) Launch(shape, tokens, r, parts[r]);
    ranks_.Wait();
    std::vector<Results> out;
    for (const Part& p : parts) {
      out.push_back({p.residual->Get(), Decode(shape.type, p.out->Get())});
    }
    return out;
  }
  // The adapters' sites of the other way, in layer 0, hold nothing.
  void SetTargets(const Shape& shape, int rank, SumNormLora& lora) const {
    const LoraTargets targets = Targets(shape, rank);
    LoraTargets none = targets;
    none.layer = 0;
    none.column[0] = 0;
    none.features[0] = shape.n;
    lora.whole = shape.sliced ? none : targets;
    lora.slice = shape.sliced ? targets : LoraTargets{};
  }
  void Launch(const Shape& shape, int tokens, int rank, const Part& p) {
    ranks_.Use(rank);
    if (shape.mix != Mix::kNone) {
      LoraShrink(p.targets.step, Targets(shape, rank), p.x->get(), tokens, ranks_.stream(rank));
    }
    const SumNormArgs args{shape.type, p.residual->get(), p.delta->get(), p.weight->get(),
                           kEps,       shape.n,           tokens,         p.out->get()};
    ASSERT_EQ(cudaSuccess, SumAddRmsNorm(ranks_.group(rank), args, p.targets, ranks_.stream(rank)));
  }

  Results Want(const Shape& shape) const {
    std::vector<float> sum(residual_.size(), 0.0f);
    for (int r = 0; r < ranks_.size(); ++r) {
      std::vector<float> part = deltas_[r];
      LoraCase lora(shape.type, shape.tokens, Targets(shape, r));
      AddMix(shape.mix, &lora);
      lora.Build();
      if (shape.mix != Mix::kNone) lora.AddReference(inputs_[r], shape.n, part);
      RoundTo(shape.type, part);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    RoundTo(shape.type, sum);
    Results want{residual_, std::vector<float>(residual_.size())};
    for (int t = 0; t < shape.tokens; ++t) {
      float* const row = &want.residual[size_t(t) * shape.n];
      double squares = 0;
      for (int i = 0; i < shape.n; ++i) row[i] += sum[size_t(t) * shape.n + i];
      for (int i = 0; i < shape.n; ++i) squares += double(row[i]) * row[i];
      const double inverse = 1 / std::sqrt(squares / shape.n + kEps);
      for (int i = 0; i < shape.n; ++i) {
        want.out[size_t(t) * shape.n + i] = static_cast<float>(weight_[i] * (row[i] * inverse));
      }
    }
    return want;
  }

  void Check(const Shape& shape) {
    SCOPED_TRACE(testing::Message()
                 << "n " << shape.n << " tokens " << shape.tokens << " mix "
                 << static_cast<int>(shape.mix) << (shape.sliced ? " sliced" : "")
                 << (shape.type == Type::kF32 ? " f32" : " bf16"));
    ASSERT_TRUE(TakesSumNorm(ranks_.group(0), shape.type, shape.n));
    MakeStep(shape);
    const Results want = Want(shape);
    const std::vector<Results> got = Run(shape);
    for (const Results& of_rank : got) {
      // No sum is rounded otherwise where there is no LoRA.
      if (shape.mix == Mix::kNone) {
        ASSERT_EQ(of_rank.residual, want.residual);
      }
      ASSERT_LE(RowError(of_rank.residual, want.residual, shape.n), Tolerance(shape.type));
      ASSERT_LE(RowError(of_rank.out, want.out, shape.n), 2 * Tolerance(shape.type));
      ASSERT_EQ(of_rank.residual, got[0].residual);
      ASSERT_EQ(of_rank.out, got[0].out);
    }
    const int token = shape.tokens / 2;
    const std::vector<Results> alone = Run(shape, token);
    ASSERT_EQ(alone[0].residual, RowOf(got[0].residual, token, shape.n));
    ASSERT_EQ(alone[0].out, RowOf(got[0].out, token, shape.n));
  }

  Ranks ranks_{GetParam(), kLimitNs, size_t{16} << 20};
  std::mt19937 random_{5};
  std::vector<float> residual_, weight_;
  std::vector<std::vector<float>> deltas_, inputs_;  // by rank
};

TEST_P(SumNorm, EqualsLoraSumAndNorm) {
  if (ranks_.size() > 3) {  // the time is the host's, which makes every rank's operands
    Check({Type::kBF16, 4096, 5, Mix::kNone});
    Check({Type::kF32, 5120, 5, Mix::kStacked});
    Check({Type::kBF16, 200, 7, Mix::kMixedRanks, /*sliced=*/true});
    Check({Type::kBF16, 4096, kMostSumNormTokens, Mix::kUniform});
    Check({Type::kBF16, 16384, kMostSumNormTokens, Mix::kNone});
    return;
  }
  constexpr Mix kMixes[] = {Mix::kNone, Mix::kDistinct, Mix::kUniform, Mix::kMixedRanks,
                            Mix::kStacked};
  for (const Type type : {Type::kBF16, Type::kF32}) {
    for (const int n : {8, 200, 576, 4096, 5120}) {
      for (const Mix mix : kMixes) Check({type, n, 5, mix});
      Check({type, n, 7, Mix::kMixedRanks, /*sliced=*/true});
    }
    Check({type, 4096, kMostSumNormTokens, Mix::kUniform});
  }
  // More blocks than find room at once, with a GPU a rank too.
  Check({Type::kBF16, 16384, kMostSumNormTokens, Mix::kUniform});
}

// Calls of more rows than a launch has, in turn with others.
TEST_P(SumNorm, InSeveralLaunches) {
  SumNormRows few;
  few.most.fill(3);
  ranks_.LimitRows(few);
  for (const Mix mix : {Mix::kNone, Mix::kUniform}) {
    for (const int tokens : {3, 4, 11}) Check({Type::kBF16, 576, tokens, mix});
  }
}

// Calls of both kinds in turn use the same inboxes.
TEST_P(SumNorm, AmongSums) {
  for (int i = 0; i < 7 && !HasFatalFailure(); ++i) {
    Check({Type::kBF16, 576, 3 + i, i % 2 == 0 ? Mix::kNone : Mix::kUniform});
    std::vector<std::unique_ptr<DeviceArray<float>>> data;
    const size_t count = 100 + 3000 * i;
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      data.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(count, 1.0f + r)));
    }
    ranks_.Settle();
    for (int r = 0; r < ranks_.size(); ++r) {
      ranks_.Use(r);
      ROOTSTOCK_CUDA_OK(AllReduceSum(ranks_.group(r), SumAlgorithm::kOneShot, data[r]->get(), count,
                                     Type::kF32, ranks_.stream(r)));
    }
    ranks_.Wait();
    const float sum = static_cast<float>(ranks_.size() * (ranks_.size() + 1)) / 2;
    for (const auto& of_rank : data) ASSERT_EQ(of_rank->Get(), std::vector<float>(count, sum));
  }
}

// The group's number of rows, not the own GPU's, cuts a call into launches.
TEST_P(SumNorm, LaunchesFollowFromTheGroup) {
  constexpr int kN = 576, kTokens = 40;
  const DeviceArray<float> residual(kN * kTokens), weight(kN);
  const DeviceArray<std::byte> delta(kN * kTokens * 2), out(kN * kTokens * 2);
  const SumNormArgs args{Type::kBF16, residual.get(), delta.get(), weight.get(), kEps,
                         kN,          kTokens,        out.get()};
  SumNormRows rows;
  for (const int most : {40, 39, 7}) {
    rows.most.fill(most);
    ranks_.LimitRows(rows);
    ranks_.Use(0);
    ROOTSTOCK_CUDA_OK(cudaStreamBeginCapture(ranks_.stream(0), cudaStreamCaptureModeThreadLocal));
    ROOTSTOCK_CUDA_OK(SumAddRmsNorm(ranks_.group(0), args, {}, ranks_.stream(0)));
    cudaGraph_t graph = nullptr;
    ROOTSTOCK_CUDA_OK(cudaStreamEndCapture(ranks_.stream(0), &graph));
    size_t launches = 0;
    ROOTSTOCK_CUDA_OK(cudaGraphGetNodes(graph, nullptr, &launches));
    EXPECT_EQ(launches, (kTokens + most - 1) / most) << most;
    cudaGraphDestroy(graph);
  }
  rows.most.fill(0);  // some rank's GPU takes none
  ranks_.LimitRows(rows);
  EXPECT_FALSE(TakesSumNorm(ranks_.group(0), Type::kBF16, kN));
  EXPECT_EQ(cudaErrorInvalidValue, SumAddRmsNorm(ranks_.group(0), args, {}, ranks_.stream(0)));
}

TEST_P(SumNorm, RefusesWhatItDoesNotTake) {
  EXPECT_FALSE(TakesSumNorm(ranks_.group(0), Type::kBF16, 4));
  EXPECT_FALSE(TakesSumNorm(ranks_.group(0), Type::kBF16, 1 << 17));
  SumNormArgs args;
  args.n = 4096;
  args.tokens = kMostSumNormTokens + 1;
  EXPECT_EQ(cudaErrorInvalidValue, SumAddRmsNorm(ranks_.group(0), args, {}, ranks_.stream(0)));
}

INSTANTIATE_TEST_SUITE_P(Size, SumNorm, testing::Values(2, 3, 4, 8));

// A rank that waits in vain ends its kernel, and all later ones.
TEST(SumNormLost, LimitEndsTheWait) {
  Ranks ranks(2, /*limit_ns=*/20'000'000);
  constexpr int kN = 8192, kTokens = 4;
  const DeviceArray<float> residual(kN * kTokens), weight(kN);
  const DeviceArray<std::byte> delta(kN * kTokens * 2), out(kN * kTokens * 2);
  const SumNormArgs args{Type::kBF16, residual.get(), delta.get(), weight.get(), kEps,
                         kN,          kTokens,        out.get()};
  for (int call = 0; call < 2; ++call) {
    ROOTSTOCK_CUDA_OK(SumAddRmsNorm(ranks.group(0), args, {}, ranks.stream(0)));
    ranks.Wait();
    EXPECT_EQ(ranks.words()[1], 1u);
  }
}

}  // namespace
}  // namespace rootstock::kernels::cuda
