// Long steps in bf16, whose GEMMs may add LoRA and apply silu(gate) · up themselves, against the
// same prompts in steps that are too short for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "tests/parity/random_model.h"

namespace rootstock {
namespace {

constexpr int kPrompt = 300;
constexpr int kShort = 40;  // of a prompt a step: less than 256 tokens in all

class LongStepsTest : public testing::TestWithParam<RandomShape> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / absl::StrCat("long_steps.", getpid());
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "config.json") << ConfigOf(GetParam());
    GroupOptions options;
    options.dtype = options.compute_type = DType::kBF16;
    options.dummy_weights = true;
    options.num_pages = 3000;
    options.max_tokens = 4 * kPrompt;
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
  std::unique_ptr<TestGroup> group_;
  std::vector<std::string> names_;
};

TEST_P(LongStepsTest, AnswerAsShortOnes) {
  const std::vector<std::vector<float>> want = Logits(kShort, true), base = Logits(kShort, false);
  const std::vector<std::vector<float>> got = Logits(kPrompt, true);
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_GE(Difference(base[i], want[i]), i == 0 ? 0.0 : 0.2);
    EXPECT_LT(Difference(got[i], want[i]), 0.02);
  }
  EXPECT_EQ(Logits(kPrompt, true), got) << "the same plan";
}

INSTANTIATE_TEST_SUITE_P(Shapes, LongStepsTest,
                         testing::Values(RandomShape{"of8B", 4096, 14336, 32, 8},
                                         RandomShape{"ofOddTiles", 1152, 3456, 9, 3}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rootstock
