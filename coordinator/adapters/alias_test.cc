#include "coordinator/adapters/alias.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(AliasTargets, OneToSixteenOnceEachWithAWeight) {
  EXPECT_TRUE(CheckAliasTargets({{"a", 1, 1}}).ok());
  EXPECT_FALSE(CheckAliasTargets({}).ok());
  EXPECT_FALSE(CheckAliasTargets({{"a", 1, 0}}).ok());
  EXPECT_FALSE(CheckAliasTargets({{"a", 1, kMaxAliasWeight + 1}}).ok());
  EXPECT_FALSE(CheckAliasTargets({{"a", 1, 1}, {"a", 1, 2}}).ok());
  std::vector<AliasTarget> many;
  for (uint32_t i = 1; i <= 16; ++i) many.push_back({"a", i, 1});
  EXPECT_TRUE(CheckAliasTargets(many).ok());
  many.push_back({"a", 17, 1});
  EXPECT_FALSE(CheckAliasTargets(many).ok());
}

TEST(AliasTargets, AreStoredAsText) {
  const std::vector<AliasTarget> targets = {{"pirate", 2, 9}, {"pirate-x", 13, 1}};
  EXPECT_EQ(EncodeAliasTargets(targets), "pirate@2=9,pirate-x@13=1");
  EXPECT_EQ(*DecodeAliasTargets("pirate@2=9,pirate-x@13=1"), targets);
  EXPECT_TRUE(DecodeAliasTargets("")->empty());
  for (const char* text : {"a", "a@1", "a=1", "a@0=1", "a@1=x", "a@1=1,", "a@1=0", "a@1= 1",
                           "a@1=01", "a@1=1,a@1=2", "a@1=1000001"}) {
    EXPECT_FALSE(DecodeAliasTargets(text).ok()) << text;
  }
}

// The choice must not change between releases: a request that is sent again after a restart gets
// the version that it had.
TEST(AliasChoice, IsFixedByAliasRevisionAndRequest) {
  const std::vector<AliasTarget> targets = {{"a", 1, 90}, {"a", 2, 10}};
  std::string chosen;
  for (int i = 0; i < 32; ++i) {
    chosen += absl::StrCat(ChooseAliasTarget("prod", 7, targets, absl::StrCat("request-", i)));
  }
  EXPECT_EQ(chosen, "00011000000000010000000000000000");
}

TEST(AliasChoice, TargetsGetTheirSharesOfAnyRevision) {
  const std::vector<AliasTarget> targets = {{"a", 1, 90}, {"a", 2, 9}, {"b", 1, 1}};
  constexpr int kRequests = 20000;
  for (const uint64_t revision : {1, 2, 77}) {
    std::map<size_t, double> share;
    for (int i = 0; i < kRequests; ++i) {
      share[ChooseAliasTarget("canary", revision, targets, absl::StrCat("req-", i))] +=
          100.0 / kRequests;
    }
    // Five standard deviations.
    EXPECT_NEAR(share[0], 90, 1.1);
    EXPECT_NEAR(share[1], 9, 1.1);
    EXPECT_NEAR(share[2], 1, 0.4);
  }
}

}  // namespace
}  // namespace rootstock
