#include "coordinator/ctl/command_line.h"

#include <fstream>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CommandLineTest : public ::testing::Test {
 protected:
  // The chosen command's name, the help text, or the error.
  std::string Parse(std::vector<const char*> args) {
    values_ = {};
    args.insert(args.begin(), "loractl");
    const auto commands = ClientCommands(values_);
    const auto choice = ParseCommand({"loractl", "client", "1"}, ClientFlags(values_), commands,
                                     static_cast<int>(args.size()), args.data());
    if (!choice.ok()) return std::string(choice.status().message());
    return choice->command != nullptr ? choice->command->name : choice->text;
  }
  CommandLineValues values_;
};

TEST_F(CommandLineTest, EveryFlagIsAKeyOfAConfigFile) {
  const std::string file = ::testing::TempDir() + "/loractl.yaml";
  std::ofstream(file) << "address: far:1\ntenant: t\ntimeout: 3\njson: true\nmodel: pirate\n"
                         "temperature: 0.5\nstop: [a, b]\nignore-eos: true\nparallel: 3\n"
                         "parse-special: true\nno-special-tokens: true\n";
  EXPECT_EQ(Parse({"--config", file.c_str(), "generate", "hi", "--temperature", "0.25"}),
            "generate");
  EXPECT_EQ(values_.client.address, "far:1");
  EXPECT_EQ(values_.client.tenant, "t");
  EXPECT_EQ(values_.client.timeout_seconds, 3);
  EXPECT_TRUE(values_.client.json);
  EXPECT_EQ(values_.request.model(), "pirate");
  EXPECT_EQ(values_.request.text(), "hi");
  EXPECT_EQ(values_.request.sampling().temperature(), 0.25f);
  EXPECT_THAT(values_.request.stop(), ElementsAre("a", "b"));
  EXPECT_TRUE(values_.request.ignore_eos());
  EXPECT_TRUE(values_.request.parse_special());
  EXPECT_EQ(values_.parallel, 3);
  EXPECT_FALSE(values_.tokenize.has_add_special_tokens());

  EXPECT_EQ(Parse({"tokenize", "x", "--config", file.c_str()}), "tokenize");
  EXPECT_TRUE(values_.tokenize.has_add_special_tokens());
  EXPECT_FALSE(values_.tokenize.add_special_tokens());
  EXPECT_TRUE(values_.tokenize.parse_special());
  EXPECT_FALSE(values_.request.parse_special());

  std::ofstream(file) << "temprature: 1\n";
  EXPECT_THAT(Parse({"status", "--config", file.c_str()}), HasSubstr("temprature=1: unknown key"));
}

TEST_F(CommandLineTest, CommandsTakeTheirArguments) {
  EXPECT_EQ(Parse({"--json", "adapter", "add", "pirate", "dir/pirate"}), "adapter add");
  EXPECT_EQ(values_.name, "pirate");
  EXPECT_EQ(values_.path, "dir/pirate");
  EXPECT_EQ(Parse({"adapter", "list"}), "adapter list");
  EXPECT_EQ(Parse({"drain", "g0"}), "drain");
  EXPECT_EQ(values_.name, "g0");
  EXPECT_EQ(Parse({"adapter", "list", "--page-size", "7", "--page-token", "t"}), "adapter list");
  EXPECT_EQ(values_.page_size, 7);
  EXPECT_EQ(values_.page_token, "t");
  for (const char* command : {"health", "services"}) {
    EXPECT_EQ(Parse({command}), command);
    EXPECT_EQ(values_.name, "");
    EXPECT_EQ(Parse({command, "rootstock.v1.Inference"}), command);
    EXPECT_EQ(values_.name, "rootstock.v1.Inference");
  }
  EXPECT_THAT(Parse({"adapter", "add", "pirate"}), HasSubstr("PATH: is required"));
  EXPECT_THAT(Parse({"adapter"}), HasSubstr("command=adapter"));
  EXPECT_THAT(Parse({"status", "--max-tokens", "3"}), HasSubstr("max-tokens=3: is no flag of"));
  EXPECT_THAT(Parse({"generate", "--max-tokens", "many"}), HasSubstr("max-tokens=many"));
  EXPECT_EQ(Parse({"generate", "--temperature", "-1", "--max-tokens=-3"}), "generate");
  EXPECT_EQ(values_.request.max_tokens(), -3);  // the server's to judge
}

TEST_F(CommandLineTest, TextsAndTokens) {
  EXPECT_EQ(Parse({"tokenize", "hi", "--no-special-tokens=false"}), "tokenize");
  EXPECT_EQ(values_.tokenize.text(), "hi");
  EXPECT_TRUE(values_.tokenize.add_special_tokens());
  EXPECT_THAT(Parse({"tokenize"}), HasSubstr("TEXT: is required: tokenize TEXT"));
  EXPECT_EQ(Parse({"detokenize", "1, 2 3"}), "detokenize");
  EXPECT_THAT(values_.detokenize.token_ids(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(values_.detokenize.has_skip_special_tokens());
  EXPECT_EQ(Parse({"detokenize", "1", "--skip-special-tokens=false"}), "detokenize");
  EXPECT_TRUE(values_.detokenize.has_skip_special_tokens());
  EXPECT_FALSE(values_.detokenize.skip_special_tokens());
  EXPECT_THAT(Parse({"detokenize", "1,x"}), HasSubstr("IDS=x: must be a whole number"));
}

TEST_F(CommandLineTest, OnePromptOnly) {
  const std::string file = ::testing::TempDir() + "/prompt.txt";
  std::ofstream(file) << "from the file";
  EXPECT_THAT(Parse({"generate", "hi", "--token-ids", "1,2"}),
              HasSubstr("prompt=hi: the prompt is given already, as token-ids=1,2: one of TEXT, "
                        "--prompt, --prompt-file, --token-ids"));
  EXPECT_THAT(Parse({"generate", "hi", "--prompt", "there"}), HasSubstr("as prompt=there"));
  EXPECT_THAT(Parse({"generate", "--prompt", "hi", "--prompt-file", file.c_str()}),
              HasSubstr("prompt-file=" + file + ": the prompt is given already, as prompt=hi"));
  EXPECT_THAT(Parse({"generate", "--prompt-file", file.c_str(), "--token-ids", "1"}),
              HasSubstr("token-ids=1: the prompt is given already"));
  EXPECT_EQ(Parse({"generate", "--prompt-file", file.c_str()}), "generate");
  EXPECT_EQ(values_.request.text(), "from the file");
}

TEST_F(CommandLineTest, EveryTokenMayBeDrawnForMinusOneToo) {
  EXPECT_EQ(Parse({"generate", "hi", "--top-k", "-1"}), "generate");
  EXPECT_EQ(values_.request.sampling().top_k(), -1);
  EXPECT_THAT(Parse({"generate", "--help"}), HasSubstr("0 or -1 for all"));
}

TEST_F(CommandLineTest, HelpFitsAScreen) {
  for (const std::string& text : {Parse({"--help"}), Parse({"generate", "--help"})}) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    EXPECT_LE(lines.size(), 45u) << text;
    for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(Parse({"--help"}), HasSubstr("adapter add NAME PATH"));
  EXPECT_THAT(Parse({"--help"}), HasSubstr("generate [TEXT]"));
  EXPECT_THAT(Parse({"generate", "--help"}), HasSubstr("--repetition-penalty N"));
}

}  // namespace
}  // namespace rootstock
