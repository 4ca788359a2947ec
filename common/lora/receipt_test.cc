// Files that hold several projections in one pair, and what the receipt says.
#include "common/lora/receipt.h"

#include <cmath>
#include <cstring>

#include "common/lora/peft_loader_fixture.h"

namespace rootstock {
namespace {

// qkv and gate_up in one pair each: A is shared, B's rows go to the parts; K and V are narrower.
TestTensors FusedTensors(const ModelSpec& model, int lora_rank) {
  TestTensors tensors;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    const std::string at = "base_model.model.model.layers." + std::to_string(layer);
    AddPair(tensors, at + ".self_attn.qkv_proj", lora_rank, 64, 64 + 32 + 32, layer);
    AddPair(tensors, at + ".mlp.gate_up_proj", lora_rank, 64, 96 + 96, layer + 5);
  }
  return tensors;
}

// The same adapter with each projection in tensors of its own.
TestTensors Unfused(const TestTensors& fused, const ModelSpec& model) {
  TestTensors out;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    const auto split = [&](const std::string& leaf, const std::vector<Module>& parts) {
      const std::string at = "base_model.model.model.layers." + std::to_string(layer) + leaf;
      const TestTensor& a = fused.at(at + ".lora_A.weight");
      const TestTensor& b = fused.at(at + ".lora_B.weight");
      size_t from = 0;
      for (const Module m : parts) {
        const int64_t rows = model.out_features(m);
        const size_t bytes = rows * b.shape[1] * 4;
        out[PeftPath(layer, m) + ".lora_A.weight"] = a;
        out[PeftPath(layer, m) + ".lora_B.weight"] = {
            "F32", {rows, b.shape[1]}, b.bytes.substr(from, bytes)};
        from += bytes;
      }
    };
    split(".self_attn.qkv_proj", {Module::kQ, Module::kK, Module::kV});
    split(".mlp.gate_up_proj", {Module::kGate, Module::kUp});
  }
  return out;
}

TEST_F(PeftLoaderTest, B4_FusedFilesKeepTheirScaleAndSplitByHeads) {
  const TestTensors fused = FusedTensors(model_, 4);
  const std::string more = R"("r": 4, "use_rslora": true, "target_modules": )";
  const auto one = MustLoad(TestConfig(more + R"(["qkv_proj", "gate_up_proj"])"), fused);
  EXPECT_EQ(ScaleOf(one, 0, Module::kV), 8.0f);
  EXPECT_EQ(ScaleOf(one, 2, Module::kUp), 8.0f);
  const std::string parts = R"(["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"])";
  const auto other = MustLoad(TestConfig(more + parts), Unfused(fused, model_));
  EXPECT_EQ(DigestOf(one), DigestOf(other));
  EXPECT_EQ(DigestOf(one), DigestOf(MustLoad(TestConfig(more + parts), fused)));
  EXPECT_EQ(DigestOf(one), DigestOf(MustLoad(TestConfig(more + "\"all-linear\""), fused)));
}

TEST_F(PeftLoaderTest, B4_FusedFilesThatClashAreRefused) {
  TestTensors tensors = FusedTensors(model_, 8);
  AddModule(tensors, model_, 1, Module::kK, 8);
  const std::string all = R"("target_modules": "all-linear")";
  ExpectRefused(TestConfig(all), tensors, Reason::kDuplicate, "layers.1.self_attn.k_proj");
  tensors = FusedTensors(model_, 8);
  ExpectRefused(TestConfig(), tensors, Reason::kUnattachedTensor, "gate_up_proj");
  ExpectRefused(TestConfig(all + R"(, "rank_pattern": {"k_proj": 4})"), tensors,
                Reason::kShapeMismatch, "qkv_proj");
  tensors["base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight"] = Numbers(192, 8);
  ExpectRefused(TestConfig(all), tensors, Reason::kShapeMismatch, "[128, 8]");  // not 3 equal parts
}

TEST(Receipt, NormIsThatOfTheProduct) {
  // scale · B·A by hand: A = [[1,2],[3,4]], B = [[1,0],[0,2],[1,1]]
  LoraWeights w;
  const float a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 2, 1, 1};
  w.a.assign(reinterpret_cast<const uint8_t*>(a), reinterpret_cast<const uint8_t*>(a + 4));
  w.b.assign(reinterpret_cast<const uint8_t*>(b), reinterpret_cast<const uint8_t*>(b + 6));
  const double squares = 1 + 4 + 36 + 64 + 16 + 36;
  EXPECT_NEAR(DeltaFrobenius(w, 2, 2, 3, -0.5f), 0.5 * std::sqrt(squares), 1e-12);
}

TEST_F(PeftLoaderTest, ReceiptTellsRoundingDtypeAndBaseName) {
  TestTensors tensors = QvTensors(model_, 8);
  const auto receipt_of = [&](const std::string& served) {
    const auto adapter =
        MustLoad(TestConfig(R"("base_model_name_or_path": "/m/Tiny-1B/")"), tensors);
    return MakeReceipt(adapter, model_, EncodeCanonical(adapter, model_), served);
  };
  Receipt receipt = receipt_of("hub/tiny-1b");
  EXPECT_EQ(receipt.file_dtype, "F32");
  EXPECT_EQ(receipt.max_rounding, 0.0);  // sixteenths are exact in bf16
  EXPECT_EQ(receipt.base_name_warning, "");
  EXPECT_GT(receipt.blob_bytes, 0u);
  const float odd = 1.0f + 1.0f / 256;  // half a step above 1 in bf16
  std::memcpy(tensors.begin()->second.bytes.data(), &odd, 4);
  TestTensor& last = tensors.rbegin()->second;
  last = Numbers(last.shape[0], last.shape[1], 3, "BF16");
  receipt = receipt_of("other");
  EXPECT_EQ(receipt.file_dtype, "mixed");
  EXPECT_NEAR(receipt.max_rounding, (odd - 1.0) / odd, 1e-9);
  EXPECT_NE(receipt.base_name_warning.find("Tiny-1B"), std::string::npos);
  EXPECT_NE(receipt.base_name_warning.find("other"), std::string::npos);
}

}  // namespace
}  // namespace rootstock
