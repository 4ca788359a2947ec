// A SentencePiece model in a process that uses Protocol Buffers: each has a runtime of its own.
#include <array>
#include <bit>
#include <filesystem>
#include <fstream>

#include "coordinator/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;

// Fields of sentencepiece_model.proto, written by hand; lengths under 128.
std::string Field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string Number(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string Piece(const std::string& text, float score, int type) {
  const auto bits = std::bit_cast<std::array<char, 4>>(score);
  return Field(
      1, Field(1, text) + std::string("\x15") + std::string(bits.data(), 4) + Number(3, type));
}

TEST(SentencePieceBesideGrpc, BothWork) {
  const auto dir = std::filesystem::path(::testing::TempDir()) / "sentencepiece_beside_grpc";
  std::filesystem::create_directories(dir);
  const std::string space = "\xE2\x96\x81";
  std::ofstream(dir / "tokenizer.model", std::ios::binary)
      << Piece("<unk>", 0, 2) << Piece("<s>", 0, 3) << Piece("</s>", 0, 3)
      << Piece(space + "a", -1, 1) << Piece("b", -2, 1) << Piece(space, -3, 1) << Piece("a", -4, 1)
      << Field(2, Number(3, 1)) << Field(3, Field(1, "identity"));
  const auto tokenizer = Tokenizer::Load(dir);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode("ab b", {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(1, 3, 4, 5, 4));
  EXPECT_EQ((*tokenizer)->Decode(*ids, true), "ab b");

  v1::TokenizeResponse message, copy;
  message.mutable_token_ids()->Assign(ids->begin(), ids->end());
  ASSERT_TRUE(copy.ParseFromString(message.SerializeAsString()));
  EXPECT_THAT(copy.token_ids(), ElementsAre(1, 3, 4, 5, 4));
}

}  // namespace
}  // namespace rootstock
