#include "common/flags/flags.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Options {
  std::string listen = "0.0.0.0:50051";
  int64_t len = -1;
  uint32_t seqs = 64;
  double timeout = 30;
  bool eager = false;
  std::string level = "info";
  std::vector<std::string> adapter;
};

class FlagsTest : public ::testing::Test {
 protected:
  std::vector<FlagSpec> Table() {
    return {
        {.name = "listen", .target = &options_.listen, .help = "address", .placeholder = "A:P"},
        {.name = "max-model-len", .target = &options_.len, .help = "tokens", .min = -1},
        {.name = "max-num-seqs", .target = &options_.seqs, .help = "rows", .min = 1, .max = 9999},
        {.name = "drain-timeout", .target = &options_.timeout, .help = "seconds", .min = 0},
        {.name = "eager", .target = &options_.eager, .help = "no graphs"},
        {.name = "log-level",
         .target = &options_.level,
         .help = "what to log",
         .allowed = {"debug", "info"}},
        {.name = "adapter",
         .target = &options_.adapter,
         .help = "preload",
         .placeholder = "NAME=PATH"}};
  }

  absl::StatusOr<std::optional<std::string>> Parse(std::vector<const char*> args,
                                                   std::vector<FlagSpec> table) {
    args.insert(args.begin(), "prog");
    return ParseFlags({"prog", "does things", "1.2"}, table, static_cast<int>(args.size()),
                      args.data());
  }
  absl::StatusOr<std::optional<std::string>> Parse(std::vector<const char*> args) {
    return Parse(std::move(args), Table());
  }
  std::string Error(std::vector<const char*> args) {
    return std::string(Parse(std::move(args)).status().message());
  }
  std::string Yaml(const std::string& text) {
    const std::string file = ::testing::TempDir() + "/flags_test.yaml";
    std::ofstream(file) << text;
    return file;
  }

  Options options_;
};

TEST_F(FlagsTest, DefaultsStayAndFlagsAreRead) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(options_.seqs, 64u);
  ASSERT_TRUE(Parse({"--max-num-seqs", "8", "--max-model-len=-1", "--eager", "--drain-timeout",
                     "0.5", "--adapter", "a=x", "--adapter", "b=y"})
                  .ok());
  EXPECT_EQ(options_.seqs, 8u);
  EXPECT_EQ(options_.len, -1);
  EXPECT_TRUE(options_.eager);
  EXPECT_EQ(options_.timeout, 0.5);
  EXPECT_THAT(options_.adapter, ElementsAre("a=x", "b=y"));
}

TEST_F(FlagsTest, FileIsReadAndFlagsWin) {
  const std::string file =
      Yaml("max-num-seqs: 16\nlisten: '[::]:1'\neager: true\nadapter: [a=x, b=y]\n");
  ASSERT_TRUE(Parse({"--config", file.c_str(), "--max-num-seqs", "4", "--adapter", "c=z"}).ok());
  EXPECT_EQ(options_.seqs, 4u);
  EXPECT_EQ(options_.listen, "[::]:1");
  EXPECT_TRUE(options_.eager);
  EXPECT_THAT(options_.adapter, ElementsAre("c=z"));
}

TEST_F(FlagsTest, AValueMayBeEmpty) {
  for (const std::vector<const char*>& empty :
       {std::vector{"--listen="}, std::vector{"--listen", ""}}) {
    options_ = {};
    std::vector<const char*> args = empty;
    args.insert(args.end(), {"--max-num-seqs", "8"});
    ASSERT_TRUE(Parse(args).ok());
    EXPECT_EQ(options_.listen, "");
    EXPECT_EQ(options_.seqs, 8u);
  }
  EXPECT_THAT(Error({"--max-num-seqs="}), HasSubstr("max-num-seqs: not a whole number"));
}

TEST_F(FlagsTest, ErrorsNameFlagAndValue) {
  EXPECT_THAT(Error({"--max-num-seqs", "many"}), HasSubstr("max-num-seqs=many: not a whole"));
  EXPECT_THAT(Error({"--max-num-seqs", "-3"}), HasSubstr("max-num-seqs=-3: not a whole"));
  EXPECT_THAT(Error({"--max-num-seqs", "0"}), HasSubstr("max-num-seqs=0: must be 1 to 9999"));
  EXPECT_THAT(Error({"--max-num-seqs", "99999999999999"}), HasSubstr("max-num-seqs="));
  EXPECT_THAT(Error({"--drain-timeout", "nan"}), HasSubstr("drain-timeout=nan: not a number"));
  EXPECT_THAT(Error({"--adapter"}), HasSubstr("--adapter: 1 required NAME=PATH missing"));
  EXPECT_THAT(Error({"--log-level", "loud"}), HasSubstr("log-level=loud: must be one of debug"));
  EXPECT_THAT(Error({"--eager=maybe"}), HasSubstr("maybe"));
  EXPECT_THAT(Error({"--no-such"}), HasSubstr("--no-such"));
  EXPECT_THAT(Error({"stray"}), HasSubstr("stray"));
  EXPECT_THAT(Error({"--listen", "a", "--listen", "b"}), HasSubstr("listen"));
  EXPECT_THAT(Error({"--listen"}), HasSubstr("listen"));
}

TEST_F(FlagsTest, FileErrorsNameKeyAndValue) {
  const auto error = [&](const std::string& text) {
    const std::string file = Yaml(text);
    return Error({"--config", file.c_str()});
  };
  EXPECT_THAT(error("max-num-sesq: 4\n"), HasSubstr("max-num-sesq=4: unknown key"));
  EXPECT_THAT(error("max-num-seqs: four\n"), HasSubstr("max-num-seqs=four: not a whole"));
  EXPECT_THAT(error("max-num-seqs: [1]\n"), HasSubstr("max-num-seqs: must be a single value"));
  EXPECT_THAT(error("max-num-seqs:\n"), HasSubstr("max-num-seqs=null"));
  EXPECT_THAT(error("max-num-seqs: 4\nmax-num-seqs: 5\n"), HasSubstr("max-num-seqs: twice"));
  EXPECT_THAT(error("adapter: {a: x}\n"), HasSubstr("adapter: must be a list"));
  EXPECT_THAT(error("config: other.yaml\n"), HasSubstr("config=other.yaml: unknown key"));
  EXPECT_THAT(error("- a\n"), HasSubstr("must be a map"));
  EXPECT_THAT(error("a: [\n"), HasSubstr("config="));
  EXPECT_THAT(Error({"--config", "/no/such/file"}),
              HasSubstr("config=/no/such/file: no such file, or it can't be read"));
  EXPECT_TRUE(Parse({"--config", Yaml("").c_str()}).ok());
}

TEST_F(FlagsTest, RequiredMayComeFromTheFile) {
  std::vector<FlagSpec> table = Table();
  table[0].required = true;
  EXPECT_THAT(std::string(Parse({}, table).status().message()), HasSubstr("listen: is required"));
  EXPECT_TRUE(Parse({"--config", Yaml("listen: a\n").c_str()}, table).ok());
}

TEST_F(FlagsTest, HelpAndVersion) {
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok() && help->has_value());
  for (const FlagSpec& flag : Table()) EXPECT_THAT(**help, HasSubstr("--" + flag.name));
  EXPECT_THAT(**help, HasSubstr("(0.0.0.0:50051)"));
  EXPECT_THAT(**help, HasSubstr("debug|info"));
  for (const std::string_view line : std::vector<std::string>(absl::StrSplit(**help, '\n'))) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_EQ(**Parse({"--version"}), "prog 1.2\n");
}

}  // namespace
}  // namespace rootstock
