#include "common/flags/commands.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A program with the commands "make NAME [COLOUR]" and "box list".
class CommandsTest : public ::testing::Test {
 protected:
  std::vector<FlagSpec> Table() {
    return {{.name = "level", .target = &level_, .help = "how much", .max = 9}};
  }
  std::vector<CommandSpec> Commands() {
    return {
        {.name = "make",
         .help = "makes one",
         .arguments = {{.name = "NAME", .target = &name_, .required = true},
                       {.name = "COLOUR", .target = &colour_, .allowed = {"red", "blue"}}},
         .table = {{.name = "part",
                    .target = FlagSetter{FlagSetter::Kind::kList,
                                         [this](const std::vector<std::string>& texts) {
                                           parts_ = texts;
                                           return absl::OkStatus();
                                         }},
                    .help = "of it"},
                   {.name = "quick",
                    .target = FlagSetter{FlagSetter::Kind::kSwitch,
                                         [this](const std::vector<std::string>& texts) {
                                           quick_ = texts[0];
                                           return absl::OkStatus();
                                         }},
                    .help = "at once"}},
         .run = [] { return 7; }},
        {.name = "box list", .help = "lists", .run = [] { return 8; }},
    };
  }
  // The exit code, or 2 after an error.
  int Run(std::vector<const char*> args) {
    args.insert(args.begin(), "prog");
    return RunCommand(kProgram, Table(), Commands(), static_cast<int>(args.size()), args.data());
  }
  std::string Text(std::vector<const char*> args) {
    args.insert(args.begin(), "prog");
    const auto commands = Commands();
    const auto choice =
        ParseCommand(kProgram, Table(), commands, static_cast<int>(args.size()), args.data());
    return choice.ok() ? choice->text : std::string(choice.status().message());
  }

  const ProgramInfo kProgram = {"prog", "does things", "1.2"};
  uint32_t level_ = 1;
  std::string name_, colour_, quick_;
  std::vector<std::string> parts_;
};

TEST_F(CommandsTest, FlagsStandAnywhere) {
  EXPECT_EQ(Run({"--level", "3", "make", "x", "--part", "a", "--quick", "red", "--part", "b"}), 7);
  EXPECT_EQ(level_, 3u);
  EXPECT_EQ(name_, "x");
  EXPECT_EQ(colour_, "red");
  EXPECT_EQ(quick_, "true");
  EXPECT_THAT(parts_, ElementsAre("a", "b"));
  EXPECT_EQ(Run({"box", "list", "--level=4"}), 8);
  EXPECT_EQ(level_, 4u);
  EXPECT_EQ(Run({"make", "--", "--part"}), 7);
  EXPECT_EQ(name_, "--part");
}

TEST_F(CommandsTest, AConfigFileServesEveryCommand) {
  const std::string file = ::testing::TempDir() + "/commands_test.yaml";
  std::ofstream(file) << "level: 5\npart: [p, q]\nquick: false\n";
  EXPECT_EQ(Run({"box", "list", "--config", file.c_str()}), 8);
  EXPECT_EQ(level_, 5u);
  EXPECT_TRUE(parts_.empty());
  EXPECT_EQ(Run({"make", "x", "--config", file.c_str(), "--level", "6"}), 7);
  EXPECT_EQ(level_, 6u);
  EXPECT_EQ(quick_, "false");
  EXPECT_THAT(parts_, ElementsAre("p", "q"));
}

TEST_F(CommandsTest, ErrorsNameWhatIsWrong) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(Text({}), HasSubstr("command: is required"));
  EXPECT_THAT(Text({"box", "open"}), HasSubstr("command=box open"));
  EXPECT_THAT(Text({"box", "list", "more"}), HasSubstr("command line=more: a word too many"));
  EXPECT_THAT(Text({"box", "list", "--part", "a"}), HasSubstr("part=a: is no flag of box list"));
  EXPECT_THAT(Text({"make"}), HasSubstr("NAME: is required: make TEXT [red|blue]"));
  EXPECT_THAT(Text({"make", "x", "green"}), HasSubstr("COLOUR=green: must be one of"));
  EXPECT_THAT(Text({"make", "x", "--quick=perhaps"}), HasSubstr("perhaps"));
  EXPECT_THAT(Text({"make", "x", "--level", "10"}), HasSubstr("level=10"));
}

TEST_F(CommandsTest, HelpIsOfTheProgramOrOfACommand) {
  EXPECT_THAT(Text({"--help"}), HasSubstr("box list"));
  EXPECT_THAT(Text({"--help"}), ::testing::Not(HasSubstr("--part")));
  EXPECT_THAT(Text({"make", "--help"}), HasSubstr("--part TEXT"));
  EXPECT_THAT(Text({"make", "--help"}), HasSubstr("--level N"));
  EXPECT_EQ(Text({"--version"}), "prog 1.2\n");
  EXPECT_EQ(Run({"--version"}), 0);
}

}  // namespace
}  // namespace rootstock
