// Long steps in bf16, whose GEMMs may add LoRA and apply silu(gate) · up themselves, against the
// same prompts in steps that are too short for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>

#include "kernels/linear/linear_cuda.h"
#include "tests/parity/random_model.h"
#include "worker/device/cuda_device.h"
#include "worker/ops/cuda_ops.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr int kPrompt = 512;  // of four: tiles of the GEMMs' kernel fill its rounds
constexpr int kShort = 40;    // of a prompt a step: less than 256 tokens in all

// Products that added LoRA themselves, by (n, k); likewise those beside their shrink.
using Counts = std::map<std::pair<int, int>, int>;
struct Expanded {
  Counts all, beside;
};

class CountingLinear : public cuda::Linear {
 public:
  CountingLinear(std::unique_ptr<cuda::Linear> linear, Expanded* expands)
      : linear_(std::move(linear)), expands_(expands) {}

  std::string Run(const cuda::LinearArgs& args, cudaStream_t stream) override {
    if (args.expand != nullptr) ++expands_->all[{args.n, args.k}];
    if (args.expand != nullptr && args.expand->beside) ++expands_->beside[{args.n, args.k}];
    return linear_->Run(args, stream);
  }
  bool Gates(const cuda::LinearArgs& args) const override { return linear_->Gates(args); }
  bool Shrinks(const cuda::LinearArgs& args) const override { return linear_->Shrinks(args); }
  bool Expands(const cuda::LinearArgs& args) const override { return linear_->Expands(args); }
  bool LetsIn(const cuda::LinearArgs& args) const override { return linear_->LetsIn(args); }
  int SparesSms(const cuda::LinearArgs& args, const cuda::LoraTargets& shrink) const override {
    return linear_->SparesSms(args, shrink);
  }

 private:
  std::unique_ptr<cuda::Linear> linear_;
  Expanded* expands_;
};

struct LongShape {
  RandomShape model;
  bool narrow;  // the GEMMs of o and down are too small to add LoRA
};

void PrintTo(const LongShape& shape, std::ostream* out) { PrintTo(shape.model, out); }

class LongStepsTest : public testing::TestWithParam<LongShape> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / absl::StrCat("long_steps.", getpid());
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "config.json") << ConfigOf(GetParam().model);
    GroupOptions options;
    options.dtype = options.compute_type = DType::kBF16;
    options.dummy_weights = true;
    options.num_pages = 3000;
    options.max_tokens = 4 * kPrompt;
    options.change_backend = [this](Backend& backend) { Count(backend); };
    absl::StatusOr<std::unique_ptr<TestGroup>> group = TestGroup::Create(dir_, options);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    for (const int lora_rank : {16, 64, 24}) {
      names_.push_back(absl::StrCat("a", names_.size()));
      ASSERT_TRUE(
          group_->Load(names_.back(), RandomAdapter(group_->spec(), lora_rank, names_.size(), 0.1f))
              .ok());
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Count(Backend& backend) {
    std::string error;
    std::unique_ptr<cuda::Linear> linear = cuda::MakeLinear(&error);
    ASSERT_NE(linear, nullptr) << error;
    backend.make_ops = [device = static_cast<CudaDevice*>(backend.device.get()),
                        sampler = backend.sampler.get(),
                        counting = std::make_shared<CountingLinear>(std::move(linear), &expands_)](
                           const PagedMemory& memory) {
      return std::make_unique<CudaOps>(*device, DType::kBF16, memory, *sampler, counting);
    };
  }

  // What a long step with adapters should count.
  Counts Sites() const {
    const auto& [name, hidden, ffn, heads, kv_heads] = GetParam().model;
    const int layers = group_->spec().num_layers, head_dim = group_->spec().head_dim;
    Counts out = {{{(heads + 2 * kv_heads) * head_dim, hidden}, layers},
                  {{2 * ffn, hidden}, layers}};
    if (GetParam().narrow) return out;
    out[{hidden, heads * head_dim}] = out[{hidden, ffn}] = layers;
    return out;
  }

  // Logits behind four prompts: of no adapter, of one, of another, of both together.
  std::vector<std::vector<float>> Logits(int chunk, bool adapters) {
    std::vector<TestRequest> requests(4);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int t = 0; t < kPrompt; ++t) {
        requests[i].prompt.push_back(static_cast<int32_t>(7 * t + 131 * i) % 8192);
      }
      if (adapters && i > 0) requests[i].adapters = {names_[i - 1]};
    }
    if (adapters) requests[3].adapters.push_back(names_[0]);
    EXPECT_TRUE(group_->Run(requests, chunk).ok());
    std::vector<std::vector<float>> out;
    for (const TestRequest& request : requests) out.push_back(request.logits.front());
    return out;
  }

  static double Difference(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      error += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    return std::sqrt(error / norm);
  }

  std::filesystem::path dir_;
  Expanded expands_;
  std::unique_ptr<TestGroup> group_;
  std::vector<std::string> names_;
};

TEST_P(LongStepsTest, AnswerAsShortOnes) {
  const std::vector<std::vector<float>> want = Logits(kShort, true), base = Logits(kShort, false);
  EXPECT_EQ(expands_.all, Counts{});
  const std::vector<std::vector<float>> got = Logits(kPrompt, true);
  EXPECT_EQ(expands_.all, Sites());
  const auto gate_up = std::pair(2 * GetParam().model.ffn, GetParam().model.hidden);
  EXPECT_EQ(expands_.beside[gate_up], expands_.all[gate_up]);
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_GE(Difference(base[i], want[i]), i == 0 ? 0.0 : 0.2);
    EXPECT_LT(Difference(got[i], want[i]), 0.02);
  }
  EXPECT_EQ(Logits(kPrompt, true), got) << "the same plan";
}

INSTANTIATE_TEST_SUITE_P(Shapes, LongStepsTest,
                         testing::Values(LongShape{{"of8B", 4096, 14336, 32, 8}, false},
                                         LongShape{{"ofOddTiles", 1152, 3712, 9, 3}, true}),
                         [](const auto& info) { return info.param.model.name; });

}  // namespace
}  // namespace rootstock
