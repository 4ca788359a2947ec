#include "coordinator/ctl/commands.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(AliasTargetsOnTheCommandLine, NamesVersionsAndWeights) {
  const auto targets = ParseAliasTargets("a,b@2,c=3,d@4=50");
  ASSERT_TRUE(targets.ok()) << targets.status();
  ASSERT_EQ(targets->size(), 4u);
  const char* names[] = {"a", "b", "c", "d"};
  const uint32_t versions[] = {0, 2, 0, 4}, weights[] = {1, 1, 3, 50};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*targets)[i].name(), names[i]);
    EXPECT_EQ((*targets)[i].version(), versions[i]);
    EXPECT_EQ((*targets)[i].weight(), weights[i]);
  }
}

TEST(AliasTargetsOnTheCommandLine, WhatIsNoTargetIsNamed) {
  for (const char* text : {"", "a,", "a@", "a@0", "a=", "a=0", "a=x", "@2", "a=1=2", "a@1=-1"}) {
    EXPECT_FALSE(ParseAliasTargets(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rootstock
