#include "coordinator/ctl/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

TEST(Text, FilesAreReadOrRefusedByName) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / absl::StrCat("ctl_text.", getpid());
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "good") << "grüß\n";
  std::ofstream(dir / "bad") << "\xff\xfe";
  EXPECT_EQ(ReadTextFile("prompt-file", dir / "good").value_or(""), "grüß\n");
  const auto error = [&](const char* name) {
    return std::string(ReadTextFile("prompt-file", dir / name).status().message());
  };
  EXPECT_THAT(error("bad"), HasSubstr("is not UTF-8"));
  EXPECT_THAT(error("absent"), HasSubstr("can't be opened"));
  EXPECT_THAT(error("."), HasSubstr("is a folder"));
  std::filesystem::remove_all(dir);
}

TEST(Text, ArgumentsAreUtf8) {
  const char* good[] = {"loractl", "generate", "grüß"};
  EXPECT_TRUE(CheckArguments(3, good).ok());
  const char* bad[] = {"loractl", "generate", "\xff\xfe"};
  EXPECT_THAT(std::string(CheckArguments(3, bad).message()), HasSubstr("argument=2: is not UTF-8"));
}

}  // namespace
}  // namespace rootstock
