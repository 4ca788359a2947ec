#include "common/base/adapter_ref.h"

#include "gtest/gtest.h"

namespace rootstock {
namespace {

TEST(AdapterRef, NamesAndVersions) {
  EXPECT_EQ(ParseAdapterRef("pirate"), (AdapterRef{"pirate", 0}));
  EXPECT_EQ(ParseAdapterRef("pirate@12"), (AdapterRef{"pirate", 12}));
  EXPECT_EQ(ParseAdapterRef("pirate@4294967295")->version, 4294967295u);
  EXPECT_EQ(ParseAdapterRef("pirate@12")->Text(), "pirate@12");
  EXPECT_EQ(ParseAdapterRef("pirate")->Text(), "pirate");
}

TEST(AdapterRef, AVersionHasOneSpelling) {
  for (const char* text :
       {"a@", "a@0", "a@01", "a@+1", "a@-1", "a@1 ", "a@ 1", "a@1@2", "a@x", "a@4294967296", "@"}) {
    EXPECT_FALSE(ParseAdapterRef(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace rootstock
