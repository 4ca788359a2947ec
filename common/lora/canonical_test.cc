#include "common/lora/canonical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "common/lora/test_dir.h"

namespace rootstock {
namespace {

std::span<const uint8_t> Bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

class Canonical : public testing::Test {
 protected:
  PeftAdapter Load(const std::string& config, const TestTensors& tensors) {
    dir_.WriteAdapter(config, tensors);
    auto adapter = LoadPeftAdapter(dir_.path(), model_, {});
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    return *std::move(adapter);
  }
  void ExpectRefused(const std::string& blob, const ModelSpec& model, Reason reason) {
    const auto parsed = CanonicalAdapter::Parse(Bytes(blob), model);
    ASSERT_FALSE(parsed.ok());
    EXPECT_STREQ(ReasonName(GetErrorDetail(parsed.status())->reason), ReasonName(reason))
        << parsed.status();
  }

  const ModelSpec model_ = TestModel();
  TestDir dir_{"canonical_test"};
};

TEST_F(Canonical, RoundTripsExactly) {
  const PeftAdapter adapter =
      Load(TestConfig(R"("r": 3, "lora_alpha": 0.7, "use_rslora": true)"), QvTensors(model_, 3));
  const std::string blob = EncodeCanonical(adapter, model_);
  const auto parsed = CanonicalAdapter::Parse(Bytes(blob), model_);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->spec(), adapter.spec);  // scales to the last bit
  EXPECT_EQ(parsed->spec().modules[0].scale, static_cast<float>(0.7 / std::sqrt(3)));
  for (size_t i = 0; i < adapter.weights.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(parsed->modules()[i].a.bytes, adapter.weights[i].a));
    EXPECT_TRUE(std::ranges::equal(parsed->modules()[i].b.bytes, adapter.weights[i].b));
  }
  dir_.Write("blob", blob);
  const auto mapped = CanonicalAdapter::Open(dir_.path() / "blob", model_);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->spec(), adapter.spec);
}

TEST_F(Canonical, OneContentOneDigest) {
  const auto digest = [&](const std::string& config, const TestTensors& tensors) {
    return Sha256Of(EncodeCanonical(Load(config, tensors), model_));
  };
  const TestTensors tensors = QvTensors(model_, 8);
  const Digest base = digest(TestConfig(), tensors);
  // Written differently: a regex for a list, patterns that say the same, harmless fields.
  EXPECT_EQ(base,
            digest(TestConfig(R"("target_modules": ".*[qv]_proj", "lora_dropout": 0.5)"), tensors));
  EXPECT_EQ(base, digest(TestConfig(R"("r": 4, "lora_alpha": 3, "rank_pattern": {".*": 8},
                                       "alpha_pattern": {"q_proj": 16, "v_proj": 16})"),
                         tensors));
  // Another content: scale, a number, a type.
  EXPECT_NE(base, digest(TestConfig(R"("lora_alpha": 17)"), tensors));
  TestTensors other = tensors;
  other.begin()->second.bytes[0] ^= 1;
  EXPECT_NE(base, digest(TestConfig(), other));
  other.begin()->second = Numbers(8, 64, 1, "BF16");
  EXPECT_NE(base, digest(TestConfig(), other));
}

TEST_F(Canonical, AnotherBaseIsRefused) {
  const std::string blob = EncodeCanonical(Load(TestConfig(), QvTensors(model_, 8)), model_);
  ModelSpec other = model_;
  other.num_layers = 2;
  ExpectRefused(blob, other, Reason::kBaseMismatch);
  other = model_;
  other.num_kv_heads = 4;
  ExpectRefused(blob, other, Reason::kShapeMismatch);
}

TEST_F(Canonical, FilesThatAreNotCanonicalAreRefused) {
  const PeftAdapter adapter = Load(TestConfig(), QvTensors(model_, 8));
  const std::string blob = EncodeCanonical(adapter, model_);
  ExpectRefused(SafetensorsBytes(QvTensors(model_, 8)), model_, Reason::kHeaderInvalid);
  ExpectRefused(blob.substr(0, blob.size() - 1), model_, Reason::kTruncated);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = blob;
    const size_t at = out.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return out.replace(at, from.size(), to);
  };
  ExpectRefused(with("0x1p+1", "0x2p+0"), model_, Reason::kHeaderInvalid);  // another spelling
  ExpectRefused(with("0x1p+1", "   inf"), model_, Reason::kHeaderInvalid);
  ExpectRefused(with(R"(\"lora_rank\":8)", R"(\"lora_rank\":0)"), model_, Reason::kHeaderInvalid);
  ExpectRefused(with(R"(\"lora_rank\":8)", R"(\"lora_rank\":7)"), model_, Reason::kShapeMismatch);
  ExpectRefused(with(R"(\"layer\":1)", R"(\"layer\":0)"), model_, Reason::kHeaderInvalid);
  ExpectRefused(with(R"(\"version\":1)", R"(\"version\":2)"), model_, Reason::kHeaderInvalid);
  ExpectRefused(with("rootstock.lora", "rootstock.l0ra"), model_, Reason::kHeaderInvalid);
  ExpectRefused(with("layers.2.self_attn.v_proj.lora_B", "layers.2.self_attn.v_proj.lora_C"),
                model_, Reason::kUnpairedTensor);
  LoraSpec fewer = adapter.spec;
  fewer.modules.pop_back();
  const std::string head = EncodeCanonical(fewer, adapter.weights, model_);
  const auto file = SafetensorsFile::Parse(Bytes(blob), "blob", {});
  const auto short_file = SafetensorsFile::Parse(Bytes(head), "blob", {});
  ExpectRefused(EncodeSafetensors(file->tensors(), short_file->metadata()), model_,
                Reason::kUnattachedTensor);
}

}  // namespace
}  // namespace rootstock
