// The conformance cases: every PEFT directory is accepted with the expected receipt, or refused
// with an expected reason and a message that names what is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "common/lora/receipt.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kCases = fs::path(ROOTSTOCK_SOURCE_DIR) / "tests/cases";

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases / "adapters")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Cases : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    dir_ = kCases / "adapters" / GetParam();
    std::ifstream in(dir_ / "expect.json");
    expect_ = Json::parse(in);
    const auto model = LoadModelSpec(kCases / "models" / expect_["model"].get<std::string>());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }

  void ExpectAccepted(const PeftAdapter& adapter) {
    const std::string blob = EncodeCanonical(adapter, model_);
    const Receipt receipt = MakeReceipt(adapter, model_, blob, "tiny");
    const Json& modules = expect_["modules"];
    EXPECT_EQ(receipt.modules.size(), modules.size());
    for (const ReceiptModule& m : receipt.modules) {
      const std::string path = ModulePath(m.layer, m.module);
      ASSERT_TRUE(modules.contains(path)) << path;
      EXPECT_EQ(m.lora_rank, modules[path]["lora_rank"].get<int>()) << path;
      EXPECT_NEAR(m.scale, modules[path]["scale"].get<double>(), 1e-5) << path;
      const double norm = modules[path]["delta_frobenius"].get<double>();
      EXPECT_NEAR(m.delta_frobenius, norm, 1e-3 * norm + 1e-9) << path;
    }
    const auto canonical = CanonicalAdapter::Parse(
        {reinterpret_cast<const uint8_t*>(blob.data()), blob.size()}, model_);
    ASSERT_TRUE(canonical.ok()) << canonical.status();
    EXPECT_EQ(canonical->spec(), adapter.spec);
  }

  void ExpectRefused(const absl::Status& status) {
    const auto detail = GetErrorDetail(status);
    ASSERT_TRUE(detail.has_value()) << status;
    const Json& reasons = expect_["reasons"];
    EXPECT_NE(std::find(reasons.begin(), reasons.end(), ReasonName(detail->reason)), reasons.end())
        << status;
    const std::string message = absl::AsciiStrToLower(std::string(status.message()));
    for (const Json& mention : expect_["mentions"]) {
      EXPECT_NE(message.find(absl::AsciiStrToLower(mention.get<std::string>())), std::string::npos)
          << status;
    }
  }

  fs::path dir_;
  Json expect_;
  ModelSpec model_;
};

TEST_P(Cases, VerdictIsAsExpected) {
  const auto adapter = LoadPeftAdapter(dir_, model_, {});
  if (expect_["verdict"] == "accept") {
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    ExpectAccepted(*adapter);
  } else {
    ASSERT_FALSE(adapter.ok());
    ExpectRefused(adapter.status());
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, Cases, testing::ValuesIn(CaseNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The adapters that the demo ships, as PEFT saved them, on the shape of SmolLM2-135M-Instruct.
TEST(DemoAdapters, AreAllAccepted) {
  const auto model = ParseModelSpec(
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
          "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
          "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000,
          "tie_word_embeddings": true})");
  ASSERT_TRUE(model.ok()) << model.status();
  int seen = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(ROOTSTOCK_SOURCE_DIR) / "deploy/demo/adapters")) {
    const auto adapter = LoadPeftAdapter(entry.path(), *model, {});
    ASSERT_TRUE(adapter.ok()) << entry.path() << adapter.status();
    const Receipt receipt =
        MakeReceipt(*adapter, *model, EncodeCanonical(*adapter, *model), "SmolLM2-135M-Instruct");
    EXPECT_EQ(receipt.base_name_warning, "") << entry.path();
    EXPECT_EQ(receipt.file_dtype, "BF16");
    for (const ReceiptModule& m : receipt.modules) EXPECT_GT(m.delta_frobenius, 0.0);
    ++seen;
  }
  EXPECT_GE(seen, 5);
}

}  // namespace
}  // namespace rootstock
