#include "worker/runtime/startup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// A model of an embedding [2, 2] alone, of two-byte elements.
class StartupTest : public testing::Test {
 protected:
  StartupTest() : dir_(fs::temp_directory_path() / absl::StrCat("startup.", getpid())) {
    fs::create_directories(dir_);
  }
  ~StartupTest() override { fs::remove_all(dir_); }

  DType TypeOf(const std::string& dtype) {
    const std::string header = absl::StrCat(R"({"model.embed_tokens.weight":{"dtype":")", dtype,
                                            R"(","shape":[2,2],"data_offsets":[0,8]}})");
    std::ofstream out(dir_ / "model.safetensors", std::ios::binary);
    const uint64_t size = header.size();
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << header << std::string(8, '\0');
    out.close();
    const auto type = DTypeOfFiles(dir_);
    EXPECT_TRUE(type.ok()) << type.status();
    return *type;
  }

  const fs::path dir_;
};

TEST_F(StartupTest, AutoFollowsTheFiles) {
  EXPECT_EQ(AutoWeightType(TypeOf("BF16"), false), DType::kBF16);
  EXPECT_EQ(AutoWeightType(TypeOf("BF16"), true), DType::kBF16);
  EXPECT_EQ(AutoWeightType(DType::kF32, false), DType::kF32);
  EXPECT_EQ(AutoWeightType(DType::kF32, true), DType::kF32);
}

TEST_F(StartupTest, F16IsExactOnTheHostAndFastOnAGpu) {
  EXPECT_EQ(AutoWeightType(TypeOf("F16"), false), DType::kF32);
  EXPECT_EQ(AutoWeightType(TypeOf("F16"), true), DType::kBF16);
}

}  // namespace
}  // namespace rootstock
