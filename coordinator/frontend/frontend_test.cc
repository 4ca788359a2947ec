#include "coordinator/frontend/frontend.h"

#include <condition_variable>
#include <mutex>

#include "common/base/status.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ids 0..255 are bytes; 1000 is a special token "<eos>".
class ByteStream : public DecodeStream {
 public:
  explicit ByteStream(bool skip_special) : skip_special_(skip_special) {}
  std::string Append(int32_t id) override {
    if (id >= 256) return skip_special_ ? "" : "<eos>";
    held_ += static_cast<char>(id);
    const auto lead = static_cast<uint8_t>(held_[0]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return held_.size() < size ? "" : std::exchange(held_, {});
  }
  std::string Flush() override { return held_.empty() ? "" : "\xEF\xBF\xBD"; }
  std::unique_ptr<DecodeStream> Clone() const override {
    return std::make_unique<ByteStream>(*this);
  }

 private:
  bool skip_special_;
  std::string held_;
};

class ByteTokenizer : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::unique_ptr<DecodeStream> NewDecodeStream(bool skip_special) const override {
    return std::make_unique<ByteStream>(skip_special);
  }
  std::optional<std::string> IdToToken(int32_t) const override { return std::nullopt; }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  bool IsSpecial(int32_t id) const override { return id == 1000; }
  std::vector<int32_t> SpecialIds() const override { return {1000}; }
  int32_t VocabSize() const override { return 1001; }
};

// Collects an answer; the test waits for its end.
class Collector : public GenerateSink {
 public:
  struct Sample {
    std::string text;
    std::vector<int32_t> ids;
    std::vector<TokenLogprob> logprobs;
    FinishReason finish = FinishReason::kNone;
    std::string stop_match;
  };

  void OnAccepted(const GenerateAccepted&) override {}
  void OnPromptLogprobs(std::vector<TokenLogprob> logprobs) override {
    EXPECT_EQ(num_deltas, 0);
    prompt_logprobs = std::move(logprobs);
  }
  void OnDelta(GenerateDelta delta) override {
    ++num_deltas;
    if (samples.size() <= static_cast<size_t>(delta.index)) samples.resize(delta.index + 1);
    Sample& sample = samples[delta.index];
    EXPECT_EQ(sample.finish, FinishReason::kNone) << "after the end";
    sample.text += delta.text;
    sample.ids.insert(sample.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    sample.logprobs.insert(sample.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    sample.finish = delta.finish_reason;
    sample.stop_match = delta.stop_match;
  }
  void OnDone(const absl::Status& s, const GenerateUsage& u) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(done_);
    status = s;
    usage = u;
    done_ = true;
    wake_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return done_; });
  }

  std::vector<Sample> samples;
  std::vector<TokenLogprob> prompt_logprobs;
  int num_deltas = 0;
  absl::Status status;
  GenerateUsage usage;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
};

std::vector<int32_t> Bytes(std::string_view text) {
  return *ByteTokenizer().Encode(text, EncodeOptions{});
}

class FrontendTest : public ::testing::Test {
 protected:
  void Open(OpenRequest request, bool with_tokenizer = true) {
    if (!with_tokenizer) frontend_ = std::make_unique<Frontend>("tiny", nullptr, 2);
    answer_ = std::make_shared<Collector>();
    tokens_ = frontend_->Open(std::move(request), answer_,
                              [this](int sample) { stopped_.push_back(sample); });
  }
  // One batch a byte, as decoding gives them.
  void Push(std::string_view text, int index = 0) {
    for (const int32_t id : Bytes(text)) tokens_->Push({.index = index, .tokens = {id}});
  }
  const Collector::Sample& Close(absl::Status status = absl::OkStatus()) {
    tokens_->Close(status);
    answer_->Wait();
    return answer_->samples.at(0);
  }

  std::unique_ptr<Frontend> frontend_ =
      std::make_unique<Frontend>("tiny", std::make_shared<ByteTokenizer>(), 2);
  std::shared_ptr<Collector> answer_;
  std::shared_ptr<TokenSink> tokens_;
  std::vector<int> stopped_;
};

TEST_F(FrontendTest, TokensBecomeWholeCharacters) {
  Open({.prompt_tokens = Bytes("hi")});
  Push("a\xC3\xA9\xF0\x9F\x99\x82");
  tokens_->Push({.tokens = {'z'}, .finish_reason = FinishReason::kLength});
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "a\xC3\xA9\xF0\x9F\x99\x82z");
  EXPECT_EQ(sample.finish, FinishReason::kLength);
  EXPECT_EQ(answer_->usage.prompt_tokens, 2);
  EXPECT_EQ(answer_->usage.completion_tokens, 8);
}

TEST_F(FrontendTest, StopStringAcrossTokensEndsTheSample) {
  Open({.stop = {"STOP"}});
  Push("go SSTOP and on");
  tokens_->Push({.tokens = {'!'}, .finish_reason = FinishReason::kLength});
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "go S");
  EXPECT_EQ(sample.finish, FinishReason::kStop);
  EXPECT_EQ(sample.stop_match, "STOP");
  EXPECT_EQ(sample.ids, Bytes("go SSTOP"));
  EXPECT_EQ(answer_->usage.completion_tokens, 8);
  EXPECT_THAT(stopped_, ElementsAre(0));
}

TEST_F(FrontendTest, TokensOfOneBatchAfterAStopAreDropped) {
  Open({.stop = {"b"}, .include_stop_in_output = true});
  tokens_->Push({.tokens = Bytes("abcd"),
                 .logprobs = {{.token = 'a'}, {.token = 'b'}, {.token = 'c'}, {.token = 'd'}}});
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "ab");
  EXPECT_EQ(sample.ids, Bytes("ab"));
  EXPECT_EQ(sample.logprobs.size(), 2u);
  EXPECT_EQ(answer_->usage.completion_tokens, 2);
}

TEST_F(FrontendTest, EndTokenCountsButIsNoText) {
  Open({.skip_special_tokens = false});
  Push("ok");
  tokens_->Push({.tokens = {1000}, .finish_reason = FinishReason::kStop, .stop_match = "1000"});
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "ok");
  EXPECT_THAT(sample.ids, ElementsAre('o', 'k', 1000));
  EXPECT_EQ(sample.stop_match, "1000");
  EXPECT_EQ(answer_->usage.completion_tokens, 3);
  EXPECT_THAT(stopped_, IsEmpty());
}

TEST_F(FrontendTest, HeldBackTextComesAtTheEnd) {
  Open({.stop = {"abc"}});
  Push("xab");
  tokens_->Push({.tokens = {0xC3}, .finish_reason = FinishReason::kLength});
  EXPECT_EQ(Close().text, "xab\xEF\xBF\xBD");
}

TEST_F(FrontendTest, StopStringsCountFromMinTokensOn) {
  Open({.stop = {"a"}, .min_tokens = 3});
  Push("aaXbaY");
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "aaXb");
  EXPECT_EQ(sample.finish, FinishReason::kStop);
}

TEST_F(FrontendTest, SamplesAreIndependent) {
  Open({.n = 2, .stop = {"."}});
  Push("one.", 0);
  Push("two", 1);
  tokens_->Push({.index = 1, .tokens = {'x'}, .finish_reason = FinishReason::kLength});
  Close();
  EXPECT_EQ(answer_->samples[0].text, "one");
  EXPECT_EQ(answer_->samples[1].text, "twox");
  EXPECT_EQ(answer_->usage.completion_tokens, 8);
  EXPECT_THAT(stopped_, ElementsAre(0));
}

TEST_F(FrontendTest, PromptLogprobsComeBeforeTheFirstDelta) {
  Open({.n = 2, .prompt_tokens = {1, 2, 3, 4}, .prompt_logprobs = true});
  tokens_->Push({.index = 1, .tokens = {'b'}});
  tokens_->Push({.prompt_logprobs = {{.token = 2}, {.token = 3}}});
  tokens_->Push({.prompt_logprobs = {{.token = 4}, {.token = 2}}});
  tokens_->Push({.tokens = {'a'}});
  EXPECT_EQ(Close().text, "a");
  ASSERT_EQ(answer_->prompt_logprobs.size(), 3u);
  EXPECT_EQ(answer_->prompt_logprobs[2].token, 4);
  EXPECT_EQ(answer_->samples[1].text, "b");
}

TEST_F(FrontendTest, FailureIsPassedOnWithWhatWasCounted) {
  Open({});
  Push("ab");
  Close(absl::InternalError("lost"));
  EXPECT_EQ(answer_->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(answer_->usage.completion_tokens, 2);
}

TEST_F(FrontendTest, WithoutATokenizerIdsPassThrough) {
  Open({.prompt_tokens = {7}}, /*with_tokenizer=*/false);
  tokens_->Push({.tokens = {300, 5}, .finish_reason = FinishReason::kLength});
  const auto& sample = Close();
  EXPECT_EQ(sample.text, "");
  EXPECT_THAT(sample.ids, ElementsAre(300, 5));

  const auto encoded = frontend_->Encode("hello", true, false);
  EXPECT_EQ(encoded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(encoded.status().message()), HasSubstr("'tiny' has no tokenizer"));
  EXPECT_EQ(GetErrorDetail(encoded.status())->reason, Reason::kNoTokenizer);
  EXPECT_EQ(GetErrorDetail(frontend_->CheckStop({"x"}))->reason, Reason::kNoTokenizer);
  EXPECT_FALSE(frontend_->Decode(std::vector<int32_t>{1}, true).ok());
  EXPECT_EQ(frontend_->TokenText(65), "");
}

TEST_F(FrontendTest, StopStringsAreChecked) {
  EXPECT_TRUE(frontend_->CheckStop({"a", "b"}).ok());
  EXPECT_FALSE(frontend_->CheckStop({""}).ok());
  EXPECT_FALSE(frontend_->CheckStop({std::string(2000, 'x')}).ok());
  EXPECT_FALSE(frontend_->CheckStop(std::vector<std::string>(65, "x")).ok());
  EXPECT_EQ(frontend_->TokenText('A'), "A");
}

TEST_F(FrontendTest, DestructionDeliversWhatWasPushed) {
  Open({});
  for (int i = 0; i < 1000; ++i) Push("x");
  tokens_->Close(absl::OkStatus());
  frontend_.reset();
  EXPECT_EQ(answer_->samples.at(0).text.size(), 1000u);
  EXPECT_EQ(answer_->usage.completion_tokens, 1000);
  Push("late");  // to nobody
}

}  // namespace
}  // namespace rootstock
