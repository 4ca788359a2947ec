#include "common/lora/peft_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/lora/peft_fields.h"
#include "common/lora/test_dir.h"

namespace rootstock {
namespace {

void ExpectRefused(const std::string& extra, Reason reason, const std::string& mention) {
  const auto config = ParsePeftConfig(TestConfig(extra));
  ASSERT_FALSE(config.ok()) << extra;
  EXPECT_STREQ(ReasonName(GetErrorDetail(config.status())->reason), ReasonName(reason))
      << config.status();
  EXPECT_NE(std::string(config.status().message()).find(mention), std::string::npos)
      << config.status();
}

PeftConfig Parse(const std::string& extra) {
  const auto config = ParsePeftConfig(TestConfig(extra));
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : PeftConfig();
}

TEST(PeftFields, TheTableKnowsEveryFieldOfPeft) {
  std::ifstream in(ROOTSTOCK_SOURCE_DIR "/common/lora/testdata/peft_lora_config_fields.txt");
  std::string name;
  int seen = 0;
  while (std::getline(in, name)) {
    ++seen;
    const auto fields = PeftFields();
    EXPECT_EQ(std::count_if(fields.begin(), fields.end(),
                            [&](const PeftField& f) { return f.name == name; }),
              1)
        << name;
  }
  EXPECT_GT(seen, 40);
}

// Every field of the table does what its kind says when it is set, and passes when it is not.
TEST(PeftFields, EveryFieldIsHonouredHarmlessOrRefused) {
  for (const PeftField& field : PeftFields()) {
    const std::string name(field.name);
    const bool needed = name == "peft_type" || name == "r" || name == "lora_alpha";
    if (!needed) Parse("\"" + name + "\": null");
    if (field.kind == PeftFieldKind::kRefused && name != "peft_type") {
      for (const char* empty : {"false", "\"\"", "{}", "[]"}) Parse("\"" + name + "\": " + empty);
      ExpectRefused("\"" + name + "\": \"set\"", field.reason, name + "=set");
      ExpectRefused("\"" + name + "\": {\"a\": 1}", field.reason, name);
    }
    if (field.kind == PeftFieldKind::kHarmless) {
      const PeftConfig config = Parse("\"" + name + "\": \"set\"");
      EXPECT_EQ(config.harmless_fields, std::vector<std::string>{name});
    }
  }
}

TEST(PeftFields, AllowedValuesPass) {
  for (const char* v : {"true", "false", "null", "\"gaussian\"", "\"orthogonal\"", "\"eva\""}) {
    Parse(std::string("\"init_lora_weights\": ") + v);
  }
  for (const char* v : {"pissa", "pissa_niter_16", "olora", "loftq", "corda", "lora_ga"}) {
    ExpectRefused(std::string("\"init_lora_weights\": \"") + v + "\"", Reason::kUnsupportedField,
                  v);
  }
  Parse("\"bias\": \"none\"");
  ExpectRefused("\"bias\": \"lora_only\"", Reason::kBias, "lora_only");
  Parse("\"megatron_core\": \"megatron.core\", \"qalora_group_size\": 16");
}

TEST(PeftFields, UnknownFieldsPassOnlyWhenEmpty) {
  for (const char* v : {"null", "false", "\"\"", "{}", "[]"}) {
    Parse(std::string("\"new_method\": ") + v);
  }
  for (const char* v : {"true", "0", "1", "\"x\"", "{\"a\": null}", "[0]"}) {
    ExpectRefused(std::string("\"new_method\": ") + v, Reason::kUnknownField, "new_method=");
  }
}

TEST(PeftConfig, DefaultsArePefts) {
  const auto config = ParsePeftConfig(R"({"peft_type": "LORA"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->r, 8);
  EXPECT_EQ(config->lora_alpha, 8.0);
  EXPECT_EQ(config->target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_FALSE(ParsePeftConfig("{}").ok());
  EXPECT_FALSE(ParsePeftConfig("[]").ok());
}

TEST(PeftConfig, PatternsKeepTheFilesOrder) {
  const PeftConfig config =
      Parse(R"("rank_pattern": {"z": 2, "a": 3}, "alpha_pattern": {"y": 1.5, "b": 4})");
  EXPECT_EQ(config.rank_pattern, (std::vector<std::pair<std::string, int>>{{"z", 2}, {"a", 3}}));
  EXPECT_EQ(config.alpha_pattern,
            (std::vector<std::pair<std::string, double>>{{"y", 1.5}, {"b", 4}}));
}

TEST(PeftConfig, WrongValuesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"("r": 0)", "r=0"},
      {R"("r": -4)", "r=-4"},
      {R"("r": 8.5)", "r=8.5"},
      {R"("r": "8")", "r=8"},
      {R"("r": null)", "r=null"},
      {R"("r": 1e99)", "r=1e+99: is too large"},
      {R"("r": 3000000000)", "r=3000000000: is too large"},
      {R"("r": true)", "r=true"},
      {R"("lora_alpha": "16")", "lora_alpha"},
      {R"("lora_alpha": 1e300)", "lora_alpha=1e+300: is too large"},
      {R"("lora_alpha": -1e39)", "lora_alpha=-1e+39: is too large"},
      {R"("lora_alpha": 1e999)", "lora_alpha=1e999: is too large"},
      {R"("alpha_pattern": {"q_proj": 1e999})", "alpha_pattern[q_proj]=1e999: is too large"},
      {R"("use_rslora": "yes")", "use_rslora"},
      {R"("use_rslora": 1)", "use_rslora"},
      {R"("fan_in_fan_out": 1)", "fan_in_fan_out"},
      {R"("target_modules": 3)", "target_modules"},
      {R"("target_modules": [3])", "target_modules"},
      {R"("target_modules": [""])", "target_modules"},
      {R"("exclude_modules": {"a": 1})", "exclude_modules"},
      {R"("rank_pattern": [4])", "rank_pattern"},
      {R"("rank_pattern": {"q_proj": 0})", "rank_pattern[q_proj]=0"},
      {R"("rank_pattern": {"q_proj": "4"})", "rank_pattern[q_proj]"},
      {R"("alpha_pattern": {"q_proj": null})", "alpha_pattern[q_proj]"},
      {R"("layers_to_transform": "1")", "layers_to_transform"},
      {R"("layers_to_transform": [-1])", "layers_to_transform"},
      {R"("layers_pattern": "layers")", "layers_pattern"},
      {R"("target_modules": ".*q_proj", "layers_to_transform": [1])", "layers_to_transform"},
      {R"("base_model_name_or_path": 3)", "base_model_name_or_path"},
  };
  for (const auto& [extra, mention] : bad) {
    ExpectRefused(extra, Reason::kConfigInvalid, mention);
  }
}

TEST(PeftConfig, OtherMethodsAndDuplicates) {
  ExpectRefused(R"("peft_type": "IA3", "feedforward_modules": ["x"])", Reason::kPeftType, "IA3");
  ExpectRefused(R"("peft_type": null)", Reason::kPeftType, "peft_type");
  ExpectRefused(R"("r": 4, "r": 8)", Reason::kDuplicate, "adapter_config.json=r");
  ExpectRefused(R"("rank_pattern": {"q": 1, "q": 2})", Reason::kDuplicate, "q");
}

}  // namespace
}  // namespace rootstock
