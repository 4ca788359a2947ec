#include "coordinator/ctl/answer.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

v1::GenerateResponse Delta(int index, const std::string& text, int32_t id) {
  v1::GenerateResponse message;
  message.mutable_delta()->set_index(index);
  message.mutable_delta()->set_text(text);
  message.mutable_delta()->add_token_ids(id);
  return message;
}

TEST(Answer, CollectsSamplesAndFacts) {
  Answer answer;
  v1::GenerateResponse accepted;
  accepted.mutable_accepted()->set_model("pirate");
  accepted.mutable_accepted()->set_seed(9);
  accepted.mutable_accepted()->set_prompt_tokens(3);
  answer.Add(accepted);
  answer.Add(Delta(1, "b", 2));
  answer.Add(Delta(0, "a", 1));
  v1::GenerateResponse last = Delta(0, "c", 3);
  last.mutable_delta()->set_finish_reason(v1::FINISH_REASON_STOP);
  last.mutable_delta()->set_stop_match("3");
  last.mutable_delta()->add_logprobs()->set_logprob(-0.5f);
  answer.Add(last);
  v1::GenerateResponse done;
  done.mutable_done()->mutable_usage()->set_completion_tokens(3);
  answer.Add(done);
  const nlohmann::json out = answer.ToJson();
  EXPECT_EQ(out["model"], "pirate");
  EXPECT_EQ(out["seed"], 9);
  EXPECT_EQ(out["usage"]["completion_tokens"], 3);
  EXPECT_EQ(out["samples"][0]["text"], "ac");
  EXPECT_EQ(out["samples"][0]["token_ids"], nlohmann::json({1, 3}));
  EXPECT_EQ(out["samples"][0]["finish_reason"], "stop");
  EXPECT_EQ(out["samples"][0]["logprobs"][0]["logprob"], -0.5f);
  EXPECT_EQ(out["samples"][1]["text"], "b");
}

TEST(Answer, IdsAreShownWhereThereIsNoText) {
  EXPECT_EQ(ShownText(Delta(0, "", 12).delta()), "12 ");
  EXPECT_EQ(ShownText(Delta(0, "x", 12).delta()), "x");
}

TEST(LinePrinter, PrintsWholeLinesOnly) {
  LinePrinter printer(4);
  std::string line;
  ::testing::internal::CaptureStdout();
  printer.Print("ab", "one\ntwo", &line);
  EXPECT_EQ(line, "two");
  printer.Print("ab", std::string(90, 'x') + " end", &line);
  printer.Print("ab", " " + std::string(60, 'y'), &line);
  printer.End("ab", &line);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "ab   | one\nab   | two" +
                                                          std::string(90, 'x') + "\nab   | end " +
                                                          std::string(60, 'y') + "\n");
}

}  // namespace
}  // namespace rootstock
