// For tests: a PEFT directory loaded for TestModel().
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "common/lora/test_dir.h"

namespace rootstock {

class PeftLoaderTest : public testing::Test {
 protected:
  absl::StatusOr<PeftAdapter> Load(const std::string& config, const TestTensors& tensors) {
    dir_.WriteAdapter(config, tensors);
    return LoadPeftAdapter(dir_.path(), model_, {});
  }
  PeftAdapter MustLoad(const std::string& config, const TestTensors& tensors) {
    auto adapter = Load(config, tensors);
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    return adapter.ok() ? *std::move(adapter) : PeftAdapter();
  }
  void ExpectRefused(const std::string& config, const TestTensors& tensors, Reason reason,
                     const std::string& mention) {
    const auto adapter = Load(config, tensors);
    ASSERT_FALSE(adapter.ok()) << mention;
    EXPECT_STREQ(ReasonName(GetErrorDetail(adapter.status())->reason), ReasonName(reason))
        << adapter.status();
    EXPECT_NE(std::string(adapter.status().message()).find(mention), std::string::npos)
        << adapter.status();
  }
  Digest DigestOf(const PeftAdapter& a) { return Sha256Of(EncodeCanonical(a, model_)); }
  float ScaleOf(const PeftAdapter& a, int layer, Module m) {
    for (const LoraModule& x : a.spec.modules) {
      if (x.layer == layer && x.module == m) return x.scale;
    }
    return NAN;
  }

  const ModelSpec model_ = TestModel();
  TestDir dir_{"peft_loader_test"};
};

}  // namespace rootstock
