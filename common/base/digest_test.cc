#include "common/base/digest.h"

#include <gtest/gtest.h>

namespace rootstock {
namespace {

TEST(Digest, KnownVector) {
  EXPECT_EQ(Sha256Of("abc").Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, HexRoundTrip) {
  const Digest d = Sha256Of("x");
  EXPECT_EQ(Digest::FromHex(d.Hex()), d);
  EXPECT_FALSE(Digest::FromHex("12").has_value());
  EXPECT_FALSE(Digest::FromHex(std::string(64, 'G')).has_value());
}

TEST(Digest, IncrementalEqualsOneShot) {
  Sha256 h;
  h.Update(std::string("a"));
  h.Update(std::string("bc"));
  EXPECT_EQ(h.Finish(), Sha256Of("abc"));
}

}  // namespace
}  // namespace rootstock
