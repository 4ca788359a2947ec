#include "coordinator/adapter_loader.h"

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr char kCases[] = ROOTSTOCK_SOURCE_DIR "/tests/cases/";

TEST(AdapterLoader, ReadsADirectoryWithItsReceipt) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto loaded =
      MakeAdapterLoader(*model, "tiny", 256)(std::string(kCases) + "adapters/ok-plain-qv");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->digest, Sha256Of(loaded->canonical));
  EXPECT_EQ(loaded->spec.modules.size(), 6u);
  const auto receipt = nlohmann::json::parse(loaded->receipt_json);
  EXPECT_EQ(receipt["modules"][0]["module"], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(receipt["modules"][0]["lora_rank"], 8);
  EXPECT_EQ(receipt["modules"][0]["scale"], 2.0);
  EXPECT_NEAR(receipt["modules"][0]["delta_frobenius"], 9.70368, 1e-3);
}

TEST(AdapterLoader, TheRankCeilingIsAFlag) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok());
  const auto loaded =
      MakeAdapterLoader(*model, "tiny", 4)(std::string(kCases) + "adapters/ok-plain-qv");
  EXPECT_EQ(GetErrorDetail(loaded.status())->reason, Reason::kRankTooHigh);
}

TEST(AdapterLoader, NamesThatAreNoUtf8KeepTheReceipt) {
  Receipt receipt;
  receipt.base_model_name = "\xFF";
  EXPECT_TRUE(nlohmann::json::accept(ReceiptToJson(receipt)));
}

}  // namespace
}  // namespace rootstock
