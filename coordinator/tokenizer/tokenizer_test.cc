#include "coordinator/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/tokenizer/test_models.h"
#include "coordinator/tokenizer/utf8.h"

namespace rootstock {
namespace {

using Ids = std::vector<int32_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EncodeOptions kPlain{.add_special_tokens = false, .parse_special = false};
constexpr EncodeOptions kParse{.add_special_tokens = false, .parse_special = true};

std::unique_ptr<Tokenizer> Load(const TestJson& json) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = json.Load();
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  absl::StatusOr<Ids> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids{-1};
}

TEST(Tokenizer, MergesByRank) {
  const auto tokenizer = Load(ByteLevelJson());
  EXPECT_THAT(Encode(*tokenizer, "hello hello", kPlain), ElementsAre(259, 260));
  EXPECT_THAT(Encode(*tokenizer, "hel", kPlain), ElementsAre(256, 'l'));
}

TEST(Tokenizer, SpecialTokensAreAddedAndParsedOnDemand) {
  const auto tokenizer = Load(ByteLevelJson());
  EXPECT_THAT(Encode(*tokenizer, "a", {.add_special_tokens = true}), ElementsAre(261, 'a', 262));
  EXPECT_THAT(Encode(*tokenizer, "", {.add_special_tokens = true}), ElementsAre(261, 262));
  EXPECT_THAT(Encode(*tokenizer, "", kPlain), ElementsAre());
  EXPECT_THAT(Encode(*tokenizer, "a<s>", kParse), ElementsAre('a', 261));
  EXPECT_THAT(Encode(*tokenizer, "a<s>", kPlain), ElementsAre('a', '<', 's', '>'));
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefused) {
  for (const char* bad :
       {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xC0\x80", "ab\xF4\x90\x80\x80"}) {
    for (const TestJson& json : {ByteLevelJson(), SentencePieceJson()}) {
      const absl::StatusOr<Ids> ids = Load(json)->Encode(bad, kPlain);
      EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(ids.status().message()), HasSubstr("not valid UTF-8 at byte 2"));
    }
  }
}

TEST(Tokenizer, DecodesBytesAndSkipsSpecialTokens) {
  const auto tokenizer = Load(ByteLevelJson());
  const Ids ids{261, 259, 260, 0xC3, 0xA9, 262};
  EXPECT_EQ(tokenizer->Decode(ids, true), "hello helloé");
  EXPECT_EQ(tokenizer->Decode(ids, false), "<s>hello helloé</s>");
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const auto tokenizer = Load(ByteLevelJson());
  EXPECT_EQ(tokenizer->Decode(Ids{'a', -1, 263, INT32_MAX, INT32_MIN, 'b'}, false), "ab");
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = Load(ByteLevelJson());
  EXPECT_EQ(tokenizer->VocabSize(), 263);
  EXPECT_EQ(tokenizer->IdToToken(260), "Ġhello");
  EXPECT_EQ(tokenizer->IdToToken(263), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(-1), std::nullopt);
  EXPECT_EQ(tokenizer->TokenToId("</s>"), 262);
  EXPECT_EQ(tokenizer->TokenToId("absent"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(261));
  EXPECT_FALSE(tokenizer->IsSpecial(260));
  EXPECT_THAT(tokenizer->SpecialIds(), ElementsAre(261, 262));
}

TEST(Tokenizer, SentencePieceStyleRoundTrip) {
  const auto tokenizer = Load(SentencePieceJson());
  const Ids ids = Encode(*tokenizer, "hi hi中é", kPlain);
  EXPECT_THAT(ids, ElementsAre(263, 263, 0xE4 + 3, 0xB8 + 3, 0xAD + 3, 264));
  EXPECT_EQ(tokenizer->Decode(ids, false), "hi hi中é");
}

TEST(Tokenizer, OneBadByteOfARunMakesAllItsBytesReplacements) {
  const auto tokenizer = Load(SentencePieceJson());
  const Ids run{0xE4 + 3, 0xB8 + 3, 0xAD + 3, 0xFF + 3};
  EXPECT_EQ(tokenizer->Decode(run, false), "\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const auto tokenizer = Load(ByteLevelJson());
  IncrementalDetokenizer detokenizer(*tokenizer, {}, false);
  EXPECT_EQ(detokenizer.Append('a'), "a");
  EXPECT_EQ(detokenizer.Append(0xF0), "");
  EXPECT_EQ(detokenizer.Append(0x9F), "");
  EXPECT_EQ(detokenizer.Append(0x98), "");
  EXPECT_EQ(detokenizer.Append(0x80), "😀");
  EXPECT_EQ(detokenizer.Append(0xE4), "");
  EXPECT_EQ(detokenizer.Append('b'), "\uFFFDb");
  EXPECT_EQ(detokenizer.Append(0xC3), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
}

TEST(Detokenizer, ContextKeepsTheSpaceBetweenWords) {
  const auto tokenizer = Load(SentencePieceJson());
  IncrementalDetokenizer alone(*tokenizer, {}, false);
  EXPECT_EQ(alone.Append(263), "hi");
  IncrementalDetokenizer after(*tokenizer, Ids{1, 263}, false);
  EXPECT_EQ(after.Append(263), " hi");
}

TEST(Detokenizer, FinishesACharacterOfTheContextButRepeatsNothingOfIt) {
  const auto bytes = Load(ByteLevelJson());
  IncrementalDetokenizer unfinished(*bytes, Ids{'a', 0xC3}, false);
  EXPECT_EQ(unfinished.Append(0xA9), "é");
  // The run of byte tokens is still open, so its first character is held back with the stream.
  const auto pieces = Load(SentencePieceJson());
  IncrementalDetokenizer open(*pieces, Ids{260, 0xC3 + 3, 0xA9 + 3}, false);
  EXPECT_EQ(open.Append(0xC3 + 3), "");
  EXPECT_EQ(open.Append(0xA8 + 3), "");
  EXPECT_EQ(open.Append(260), "èh");
}

// Random ids: everything that is returned is whole characters, and together it is Decode's text.
TEST(Detokenizer, GivesTheTextOfDecode) {
  std::mt19937 random(1);
  for (const TestJson& json : {ByteLevelJson(), SentencePieceJson()}) {
    const auto tokenizer = Load(json);
    for (int round = 0; round < 2000; ++round) {
      Ids ids(random() % 24);
      // Half of them bytes that belong to a few characters, so that some runs are valid.
      for (int32_t& id : ids) {
        id = random() % 2 == 0 ? "\xE4\xB8\xAD\xC3\xA9"[random() % 5] & 0xFF
                               : static_cast<int>(random() % 280) - 5;
        if (json.normalizer != "null" && id < 256) id += 3;
      }
      const bool skip = random() % 2 == 0;
      const size_t cut = ids.empty() ? 0 : random() % ids.size();
      IncrementalDetokenizer whole(*tokenizer, {}, skip);
      IncrementalDetokenizer tail(*tokenizer, std::span(ids).first(cut), skip);
      std::string text;
      std::string tail_text;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = whole.Append(ids[i]);
        ASSERT_EQ(ValidUtf8Prefix(piece), piece.size());
        text += piece;
        if (i >= cut) tail_text += tail.Append(ids[i]);
      }
      text += whole.Flush();
      tail_text += tail.Flush();
      ASSERT_EQ(text, tokenizer->Decode(ids, skip));
      ASSERT_TRUE(text.ends_with(tail_text));
      const std::string before = tokenizer->Decode(std::span(ids).first(cut), skip);
      // What is not returned is the longest common beginning of both texts, in characters.
      size_t same = 0;
      while (same < std::min(text.size(), before.size())) {
        const size_t length = Utf8Length(text[same]);
        if (text.compare(same, length, before, same, length) != 0) break;
        same += length;
      }
      ASSERT_EQ(text.substr(same), tail_text);
    }
  }
}

// Random bytes: refused exactly when they are not UTF-8, else the text comes back.
TEST(Tokenizer, RandomBytesAreRefusedOrComeBack) {
  std::mt19937 random(2);
  const auto bytes = Load(ByteLevelJson());
  const auto pieces = Load(SentencePieceJson());
  const char alphabet[] = "a <s>\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF\n\0\xE2\x96\x81";
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 6, ' ');
    for (char& c : text) {
      c = random() % 8 == 0 ? static_cast<char>(random()) : alphabet[random() % sizeof(alphabet)];
    }
    const bool ok = ValidUtf8Prefix(text) == text.size();
    valid += ok;
    for (const EncodeOptions& options : {kPlain, kParse}) {
      const absl::StatusOr<Ids> ids = bytes->Encode(text, options);
      ASSERT_EQ(ids.ok(), ok);
      ASSERT_EQ(pieces->Encode(text, options).ok(), ok);
      if (ok) {
        ASSERT_EQ(bytes->Decode(*ids, false), text);
      }
    }
  }
  EXPECT_GT(valid, 1000);
}

TEST(Tokenizer, ServesThreadsAtOnce) {
  const auto tokenizer = Load(ByteLevelJson());
  const std::string text = "hello hello é <s> 12 中文\n";
  const Ids expected = Encode(*tokenizer, text, kParse);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const absl::StatusOr<Ids> ids = tokenizer->Encode(text, kParse);
        if (!ids.ok() || *ids != expected || tokenizer->Decode(*ids, false) != text) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace rootstock
