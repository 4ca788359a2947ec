// What the loader makes of PEFT directories. Tests named A1 … G6 each show a fault that users of
// other servers met: an adapter loaded but not applied, applied in part, or at a wrong scale.
#include "common/lora/peft_loader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/base/status.h"
#include "common/lora/peft_loader_fixture.h"
#include "common/lora/receipt.h"

namespace rootstock {
namespace {

TEST_F(PeftLoaderTest, A1_KnownPrefixesGiveOneAdapter) {
  const char* kPrefixes[] = {"base_model.model.model.",
                             "base_model.model.model.language_model.",
                             "base_model.model.language_model.model.",
                             "model.language_model.",
                             "language_model.model.",
                             "language_model.",
                             "model.",
                             "",
                             "module.base_model.model.model.",
                             "_orig_mod.base_model.model.model.",
                             "base_model.model._orig_mod.model.",
                             "base_model.model.base_model.model.model.",
                             "_fsdp_wrapped_module.base_model.model.model."};
  std::set<Digest> digests;
  for (const std::string prefix : kPrefixes) {
    for (const std::string middle : {"", ".default", ".my-adapter"}) {
      TestTensors tensors;
      for (const auto& [name, t] : QvTensors(model_, 8)) {
        std::string key = prefix + name.substr(std::string("base_model.model.model.").size());
        key.insert(key.rfind(".weight"), middle);
        tensors[key] = t;
      }
      const PeftAdapter adapter = MustLoad(TestConfig(), tensors);
      EXPECT_EQ(adapter.spec.modules.size(), 6u);
      digests.insert(DigestOf(adapter));
    }
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST_F(PeftLoaderTest, A1_ATensorThatAttachesNowhereIsRefused) {
  for (const std::string key :
       {"base_model.model.model.vision.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_norm.lora_A.weight",
        "base_model.model.model.layers.0.mlp.q_proj.lora_A.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.lora_A.weight", "q_proj", ""}) {
    TestTensors tensors = QvTensors(model_, 8);
    tensors[key] = Numbers(8, 64);
    ExpectRefused(TestConfig(), tensors, Reason::kUnattachedTensor, key);
  }
}

TEST_F(PeftLoaderTest, A1_TensorsThatTheConfigLeavesOutAreRefused) {
  TestTensors tensors = QvTensors(model_, 8);
  AddModule(tensors, model_, 1, Module::kDown, 8);
  ExpectRefused(TestConfig(), tensors, Reason::kUnattachedTensor, "layers.1.mlp.down_proj");
  ExpectRefused(TestConfig(R"("layers_to_transform": [0, 1])"), QvTensors(model_, 8),
                Reason::kUnattachedTensor, "layers.2");
  ExpectRefused(TestConfig(R"("exclude_modules": ["v_proj"])"), QvTensors(model_, 8),
                Reason::kUnattachedTensor, "v_proj");
}

TEST_F(PeftLoaderTest, A2_NothingAttachedIsRefused) {
  ExpectRefused(TestConfig(R"("target_modules": ["c_attn"])"), QvTensors(model_, 8),
                Reason::kModuleUnknown, "c_attn");
  ExpectRefused(TestConfig(R"("target_modules": ["lm_head", "embed_tokens"])"), {},
                Reason::kModuleUnknown, "no module attached");
  ExpectRefused(TestConfig(R"("target_modules": ".*c_attn")"), QvTensors(model_, 8),
                Reason::kUnattachedTensor, "c_attn");
  ExpectRefused(TestConfig(R"("target_modules": ".*c_attn")"), {}, Reason::kNothingAttached,
                "c_attn");
}

TEST_F(PeftLoaderTest, A4_ModulesAreKeptPerLayer) {
  TestTensors tensors = QvTensors(model_, 8);
  tensors.erase(PeftPath(1, Module::kV) + ".lora_A.weight");
  tensors.erase(PeftPath(1, Module::kV) + ".lora_B.weight");
  const PeftAdapter adapter = MustLoad(TestConfig(), tensors);
  ASSERT_EQ(adapter.spec.modules.size(), 5u);
  EXPECT_TRUE(std::isnan(ScaleOf(adapter, 1, Module::kV)));
  EXPECT_EQ(ScaleOf(adapter, 0, Module::kV), 2.0f);
  EXPECT_EQ(ScaleOf(adapter, 2, Module::kV), 2.0f);
}

TEST_F(PeftLoaderTest, A5_RankAndAlphaPatternsAreHonoured) {
  TestTensors tensors;
  for (int layer = 0; layer < 3; ++layer) {
    AddModule(tensors, model_, layer, Module::kQ, layer == 1 ? 5 : 2);
    AddModule(tensors, model_, layer, Module::kV, 8);
  }
  const std::string config = TestConfig(
      R"("rank_pattern": {"layers\\.1\\..*q_proj": 5, "q_proj": 2},
         "alpha_pattern": {"^model.layers.2.self_attn.v_proj": 4, ".*q_proj": 10})");
  const PeftAdapter adapter = MustLoad(config, tensors);
  EXPECT_EQ(adapter.spec.modules[0].lora_rank, 2);
  EXPECT_EQ(adapter.spec.modules[2].lora_rank, 5);
  EXPECT_EQ(ScaleOf(adapter, 0, Module::kQ), 5.0f);
  EXPECT_EQ(ScaleOf(adapter, 1, Module::kQ), 2.0f);
  EXPECT_EQ(ScaleOf(adapter, 1, Module::kV), 2.0f);
  EXPECT_EQ(ScaleOf(adapter, 2, Module::kV), 0.5f);
  ExpectRefused(TestConfig(), tensors, Reason::kShapeMismatch, "layers.0.self_attn.q_proj");
}

TEST_F(PeftLoaderTest, A6_HalfAPairIsRefusedNamingIt) {
  for (const std::string half : {".lora_A.weight", ".lora_B.weight"}) {
    TestTensors tensors = QvTensors(model_, 8);
    tensors.erase(PeftPath(2, Module::kQ) + half);
    ExpectRefused(TestConfig(), tensors, Reason::kUnpairedTensor, "layers.2.self_attn.q_proj");
  }
}

TEST_F(PeftLoaderTest, B1_RsLoraDividesByTheRoot) {
  const auto adapter =
      MustLoad(TestConfig(R"("r": 16, "use_rslora": true)"), QvTensors(model_, 16));
  EXPECT_EQ(ScaleOf(adapter, 0, Module::kQ), 4.0f);
}

TEST_F(PeftLoaderTest, B2_ScaleIsAlphaOverR) {
  EXPECT_EQ(ScaleOf(MustLoad(TestConfig(), QvTensors(model_, 8)), 0, Module::kQ), 2.0f);
  const auto adapter = MustLoad(TestConfig(R"("r": 3, "lora_alpha": 0.5)"), QvTensors(model_, 3));
  EXPECT_EQ(ScaleOf(adapter, 0, Module::kQ), static_cast<float>(0.5 / 3));
}

TEST_F(PeftLoaderTest, B3_TheScaleIsNeverFoldedIntoTheTensors) {
  const TestTensors tensors = QvTensors(model_, 8);
  const auto one = MustLoad(TestConfig(R"("lora_alpha": 1)"), tensors);
  const auto other = MustLoad(TestConfig(R"("lora_alpha": 64)"), tensors);
  for (size_t i = 0; i < one.weights.size(); ++i) {
    EXPECT_EQ(one.weights[i].a, other.weights[i].a);
    EXPECT_EQ(one.weights[i].b, other.weights[i].b);
  }
  EXPECT_NE(DigestOf(one), DigestOf(other));  // yet another adapter
}

TEST_F(PeftLoaderTest, B5_KeyOrderInTheFileMeansNothing) {
  TestTensors tensors = QvTensors(model_, 8);
  for (int layer = 0; layer < 3; ++layer) AddModule(tensors, model_, layer, Module::kV, 1);
  const std::string config = TestConfig(R"("rank_pattern": {"v_proj": 1})");
  const Digest first = DigestOf(MustLoad(config, tensors));
  // The same tensors laid out backwards, and described in another order.
  std::string json, data;
  for (const auto& [name, t] : tensors) {
    const std::string entry = "\"" + name + "\":{\"data_offsets\":[" + std::to_string(data.size()) +
                              "," + std::to_string(data.size() + t.bytes.size()) + "],\"shape\":[" +
                              std::to_string(t.shape[0]) + "," + std::to_string(t.shape[1]) +
                              "],\"dtype\":\"F32\"}";
    json = json.empty() ? entry : entry + "," + json;
    data += t.bytes;
  }
  dir_.Write("adapter_model.safetensors",
             WithLength("{" + json + ",\"__metadata__\":{\"format\":\"pt\"}}", data));
  const auto other = LoadPeftAdapter(dir_.path(), model_, {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(DigestOf(*other), first);
  EXPECT_EQ(ScaleOf(*other, 0, Module::kV), 16.0f);
  EXPECT_EQ(ScaleOf(*other, 0, Module::kQ), 2.0f);
}

TEST_F(PeftLoaderTest, G4_AnAdapterOfAnotherBaseIsRefused) {
  ModelSpec other = model_;
  other.hidden_size = 96;
  ExpectRefused(TestConfig(), QvTensors(other, 8), Reason::kShapeMismatch,
                "layers.0.self_attn.q_proj");
  other = model_;
  other.num_kv_heads = 4;
  ExpectRefused(TestConfig(), QvTensors(other, 8), Reason::kShapeMismatch,
                "layers.0.self_attn.v_proj.lora_B");
  other = model_;
  other.num_layers = 5;
  ExpectRefused(TestConfig(), QvTensors(other, 8), Reason::kUnattachedTensor, "layers.3");
  TestTensors gpt2;
  AddPair(gpt2, "base_model.model.transformer.h.0.attn.c_attn", 8, 64, 192);
  ExpectRefused(TestConfig(R"("target_modules": ["c_attn"])"), gpt2, Reason::kModuleUnknown,
                "c_attn");
  ExpectRefused(TestConfig(), gpt2, Reason::kUnattachedTensor, "c_attn");
}

TEST_F(PeftLoaderTest, G6_AllZeroIsAnAdapterAndEmptyIsRefused) {
  TestTensors tensors = QvTensors(model_, 8);
  for (auto& [name, t] : tensors) t.bytes.assign(t.bytes.size(), '\0');
  const PeftAdapter adapter = MustLoad(TestConfig(), tensors);
  const Receipt receipt = MakeReceipt(adapter, model_, EncodeCanonical(adapter, model_), "x");
  for (const ReceiptModule& m : receipt.modules) EXPECT_EQ(m.delta_frobenius, 0.0);
  EXPECT_EQ(receipt.max_rounding, 0.0);
  ExpectRefused(TestConfig(), {}, Reason::kNothingAttached, "q_proj");
}

TEST_F(PeftLoaderTest, RankCeilingIsOfWhatIsAttached) {
  PeftLimits limits;
  limits.max_lora_rank = 16;
  dir_.WriteAdapter(TestConfig(R"("r": 17)"), QvTensors(model_, 17));
  const auto over = LoadPeftAdapter(dir_.path(), model_, limits);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(GetErrorDetail(over.status())->reason, Reason::kRankTooHigh);
  EXPECT_NE(std::string(over.status().message()).find("r=17"), std::string::npos);
  EXPECT_NE(std::string(over.status().message()).find("16"), std::string::npos);
  dir_.WriteAdapter(TestConfig(R"("r": 400, "rank_pattern": {".*proj": 16})"),
                    QvTensors(model_, 16));
  EXPECT_TRUE(LoadPeftAdapter(dir_.path(), model_, limits).ok());
}

TEST_F(PeftLoaderTest, ASafetensorsFileBesideAPickleIsUsed) {
  dir_.Write("adapter_model.bin", "x");
  EXPECT_EQ(MustLoad(TestConfig(), QvTensors(model_, 8)).spec.modules.size(), 6u);
}

TEST_F(PeftLoaderTest, AHeaderLengthThatLooksLikeAPickleIsNone) {
  TestTensors tensors;
  AddModule(tensors, model_, 0, Module::kQ, 8);
  std::string file = SafetensorsBytes(tensors);
  const size_t old_length = static_cast<uint8_t>(file[0]) + 256u * static_cast<uint8_t>(file[1]);
  ASSERT_LT(old_length, 0x580u);
  file.insert(8 + old_length, 0x580 - old_length, ' ');
  file[0] = '\x80';
  file[1] = 5;
  dir_.Write("adapter_config.json", TestConfig());
  dir_.Write("adapter_model.safetensors", file);
  EXPECT_TRUE(LoadPeftAdapter(dir_.path(), model_, {}).ok());
}

TEST_F(PeftLoaderTest, HarmlessFieldsAndUnusedRulesAreTold) {
  const auto adapter =
      MustLoad(TestConfig(R"("lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "fc1"],
                    "base_model_name_or_path": "hub/tiny")"),
               QvTensors(model_, 8));
  EXPECT_EQ(adapter.harmless_fields,
            (std::vector<std::string>{"lora_dropout", "target_modules[fc1] matches nothing"}));
  EXPECT_EQ(adapter.base_model_name, "hub/tiny");
}

}  // namespace
}  // namespace rootstock
