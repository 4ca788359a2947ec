// PROTOCOL §9 (c) at the shapes that the kernels are made for: a bf16 decode row's bits don't
// depend on the rows beside it, nor on their adapters, up to 64.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/parity/random_model.h"

namespace rootstock {
namespace {

constexpr int kRows = 64;
constexpr int kTokens = 68;  // a context of more than one chunk of decode attention

class EqualBitsTest : public testing::TestWithParam<RandomShape> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / absl::StrCat("equal_bits.", getpid());
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "config.json") << ConfigOf(GetParam());
    GroupOptions options;
    options.dtype = options.compute_type = DType::kBF16;
    options.dummy_weights = true;
    options.num_pages = 3000;
    absl::StatusOr<std::unique_ptr<TestGroup>> group = TestGroup::Create(dir_, options);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    std::vector<int> lora_ranks = {16, 8, 64, 5, 16, 128, 16, 8, 16};
    while (lora_ranks.size() < kRows - 1) lora_ranks.push_back(lora_ranks.size() % 2 == 0 ? 5 : 8);
    for (const int lora_rank : lora_ranks) {
      names_.push_back(absl::StrCat("a", names_.size()));
      const std::string blob = RandomAdapter(group_->spec(), lora_rank, names_.size(), 0.02f);
      ASSERT_TRUE(group_->Load(names_.back(), blob).ok());
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // One token of prompt, so that every step is a decode step. No adapter: -1.
  TestRequest Request(int row, int adapter) const {
    TestRequest out;
    out.prompt = {100 + 37 * row};
    if (adapter >= 0) out.adapters = {names_[adapter]};
    out.max_tokens = kTokens;
    return out;
  }
  // What row `row` is answered in the company of `others` that follow it, whose adapters are by
  // `adapter_of`.
  template <typename AdapterOf>
  TestRequest Answer(int row, int others, const AdapterOf& adapter_of, int own) {
    std::vector<TestRequest> requests;
    for (int k = 1; k <= others; ++k) requests.push_back(Request(row + k, adapter_of(k)));
    requests.push_back(Request(row, own));
    EXPECT_TRUE(group_->Run(requests, 1).ok());
    return requests.back();
  }

  std::filesystem::path dir_;
  std::unique_ptr<TestGroup> group_;
  std::vector<std::string> names_;
};

TEST_P(EqualBitsTest, OfARowInAnyCompany) {
  for (const int own : {-1, 0, 2}) {
    const TestRequest alone = Answer(3, 0, [](int) { return -1; }, own);
    ASSERT_EQ(alone.logits.size(), size_t{kTokens});
    const auto expect_equal = [&](int others, int adapters, const TestRequest& beside) {
      EXPECT_EQ(beside.tokens, alone.tokens) << own << " beside " << others << " of " << adapters;
      EXPECT_EQ(beside.logits, alone.logits) << own << " beside " << others << " of " << adapters;
    };
    for (const int others : {1, 7, 8, 15, 20, 40, kRows - 1}) {
      expect_equal(others, 1, Answer(3, others, [](int) { return 0; }, own));
      // None, few, as many as graphs of half as many adapters as rows take, and more than those
      // take: shared by few rows, or each row's own.
      for (const int adapters : {0, 2, 9, 40, kRows - 1}) {
        const auto spread = [=](int k) { return k % (adapters + 1) - 1; };
        expect_equal(others, adapters, Answer(3, others, spread, own));
        if (adapters >= others) break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EqualBitsTest,
                         testing::Values(RandomShape{"of8B", 4096, 14336, 32, 8},
                                         RandomShape{"of13B", 5120, 13824, 40, 40}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rootstock
