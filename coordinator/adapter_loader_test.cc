#include "coordinator/adapter_loader.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr char kCases[] = ROOTSTOCK_SOURCE_DIR "/tests/cases/";

TEST(AdapterLoader, ReadsADirectoryWithItsReceipt) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto loaded =
      MakeAdapterLoader(*model, "tiny", {})(std::string(kCases) + "adapters/ok-plain-qv");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->digest, Sha256Of(loaded->canonical));
  EXPECT_EQ(loaded->spec.modules.size(), 6u);
  const auto receipt = nlohmann::json::parse(loaded->receipt_json);
  EXPECT_EQ(receipt["modules"][0]["module"], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(receipt["modules"][0]["lora_rank"], 8);
  EXPECT_EQ(receipt["modules"][0]["scale"], 2.0);
  EXPECT_NEAR(receipt["modules"][0]["delta_frobenius"], 9.70368, 1e-3);
}

// FAULTS L3: what else lies in its directory, templates and code, is as if it were not there.
TEST(AdapterLoader, L3NothingOfAnAdapterButItsTensorsIsTaken) {
  namespace fs = std::filesystem;
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok());
  const fs::path plain = std::string(kCases) + "adapters/ok-plain-qv";
  const fs::path dir = fs::path(testing::TempDir()) / "adapter_loader_l3";
  fs::remove_all(dir);
  fs::copy(plain, dir);
  std::ofstream(dir / "chat_template.jinja") << "{{ cycler.__init__.__globals__ }}";
  std::ofstream(dir / "tokenizer_config.json")
      << R"({"chat_template": "{{ lipsum.__globals__ }}", "auto_map": {"AutoTokenizer": "x.Y"}})";
  std::ofstream(dir / "tokenizer.json") << "{";
  for (const char* code : {"modeling_x.py", "x.py", "__init__.py"}) {
    std::ofstream(dir / code) << "raise SystemExit('executed')";
  }
  std::stringstream text;
  text << std::ifstream(plain / "adapter_config.json").rdbuf();
  auto config = nlohmann::json::parse(text.str());
  config["auto_mapping"] = {{"base_model_class", "X"}, {"parent_library", "x"}};
  std::ofstream(dir / "adapter_config.json") << config.dump();
  const auto load = MakeAdapterLoader(*model, "tiny", {});
  const auto with = load(dir), without = load(plain);
  ASSERT_TRUE(with.ok()) << with.status();
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(with->digest, without->digest);
  EXPECT_EQ((with->receipt_json + with->config_json).find("globals"), std::string::npos);
  fs::remove_all(dir);
}

// Two directories of equal weights are one content; what their configs say stays apart.
TEST(AdapterLoader, WhatTheConfigSaysIsNoPartOfTheContentsReceipt) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto load = MakeAdapterLoader(*model, "tiny", {});
  const std::filesystem::path plain = std::string(kCases) + "adapters/ok-plain-qv";
  const auto copy = std::filesystem::path(testing::TempDir()) / "adapter_loader_secret";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(plain, copy);
  auto config = nlohmann::json::parse(std::ifstream(plain / "adapter_config.json"));
  config["base_model_name_or_path"] = "secret/project";
  std::filesystem::remove(copy / "adapter_config.json");
  std::ofstream(copy / "adapter_config.json") << config;
  const auto one = load(plain);
  const auto other = load(copy);
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_EQ(one->digest, other->digest);
  EXPECT_EQ(one->receipt_json, other->receipt_json);
  const auto said = nlohmann::json::parse(other->config_json);
  EXPECT_EQ(said["base_model_name"], "secret/project");
  EXPECT_EQ(said["base_name_warning"], "trained on secret/project, served is tiny");
  EXPECT_FALSE(said["harmless_fields"].empty());
}

TEST(AdapterLoader, TheRankCeilingIsAFlag) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok());
  const auto loaded = MakeAdapterLoader(
      *model, "tiny", {.max_lora_rank = 4})(std::string(kCases) + "adapters/ok-plain-qv");
  EXPECT_EQ(GetErrorDetail(loaded.status())->reason, Reason::kRankTooHigh);
}

// Whichever way it came.
TEST(AdapterLoader, TheBytesOfTheWeightsAreBoundedByAFlag) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok());
  const std::string plain = std::string(kCases) + "adapters/ok-plain-qv";
  const uint64_t bytes = std::filesystem::file_size(plain + "/adapter_model.safetensors");
  EXPECT_TRUE(MakeAdapterLoader(*model, "tiny", {.max_bytes = bytes})(plain).ok());
  const auto loaded = MakeAdapterLoader(*model, "tiny", {.max_bytes = bytes - 1})(plain);
  EXPECT_EQ(GetErrorDetail(loaded.status())->reason, Reason::kSizeLimit);
}

// FAULTS I4: however many load, they hold the memory of the largest that is allowed. Small ones go
// on side by side.
TEST(AdapterLoader, I4LoadsWaitForMemoryThatOthersHold) {
  const auto model = LoadModelSpec(std::string(kCases) + "models/tiny-llama");
  ASSERT_TRUE(model.ok());
  const std::string plain = std::string(kCases) + "adapters/ok-plain-qv";
  const uint64_t bytes = std::filesystem::file_size(plain + "/adapter_model.safetensors");
  const auto load_after_one = [&](uint64_t max_bytes, bool drop) {
    const auto load = MakeAdapterLoader(*model, "tiny", {.max_bytes = max_bytes});
    auto first = load(plain);
    EXPECT_TRUE(first.ok()) << first.status();
    auto second = std::async(std::launch::async, [&] { return load(plain).ok(); });
    if (drop) first = absl::UnknownError("dropped");
    const bool ended =
        second.wait_for(drop || max_bytes > 2 * bytes
                            ? std::chrono::seconds(60)
                            : std::chrono::milliseconds(300)) == std::future_status::ready;
    first = absl::UnknownError("dropped");
    EXPECT_TRUE(second.get());
    return ended;
  };
  EXPECT_FALSE(load_after_one(bytes, /*drop=*/false));
  EXPECT_TRUE(load_after_one(bytes, /*drop=*/true));
  EXPECT_TRUE(load_after_one(3 * bytes, /*drop=*/false));
}

TEST(AdapterLoader, NamesThatAreNoUtf8KeepTheReceipt) {
  Receipt receipt;
  receipt.base_model_name = "\xFF";
  EXPECT_TRUE(nlohmann::json::accept(ConfigToJson(receipt)));
}

}  // namespace
}  // namespace rootstock
