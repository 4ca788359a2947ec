#include "common/lora/target_rules.h"

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/lora/python_pattern.h"
#include "common/lora/test_dir.h"

namespace rootstock {
namespace {

TargetRules Rules(const std::string& extra) {
  const auto config = ParsePeftConfig(TestConfig(extra));
  EXPECT_TRUE(config.ok()) << config.status();
  auto rules = TargetRules::Create(*config);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return *std::move(rules);
}

bool Targets(TargetRules& rules, const std::string& name) {
  const auto targets = rules.Targets({&name, 1});
  EXPECT_TRUE(targets.ok()) << targets.status();
  return targets.ok() && *targets;
}

std::string Name(int layer, Module m) { return ModulePath(layer, m); }

TEST(TargetRules, ListsMatchSuffixesAtDots) {
  TargetRules rules = Rules(R"("target_modules": ["q_proj", "mlp.up_proj", "proj"])");
  EXPECT_TRUE(Targets(rules, Name(0, Module::kQ)));
  EXPECT_TRUE(Targets(rules, Name(2, Module::kUp)));
  EXPECT_FALSE(Targets(rules, Name(0, Module::kK)));  // "proj" is no suffix at a dot
  EXPECT_FALSE(Targets(rules, Name(0, Module::kDown)));
  EXPECT_EQ(rules.Unused(), std::vector<std::string>{"target_modules[proj] matches nothing"});
}

TEST(TargetRules, RegexMustMatchTheWholeName) {
  TargetRules rules = Rules(R"("target_modules": ".*layers\\.[02]\\..*(q|down)_proj")");
  EXPECT_TRUE(Targets(rules, Name(0, Module::kQ)));
  EXPECT_TRUE(Targets(rules, Name(2, Module::kDown)));
  EXPECT_FALSE(Targets(rules, Name(1, Module::kQ)));
  EXPECT_FALSE(Targets(rules, Name(0, Module::kV)));
  TargetRules part = Rules(R"("target_modules": "q_proj")");
  EXPECT_FALSE(Targets(part, Name(0, Module::kQ)));
}

TEST(TargetRules, AllLinearInAnyCaseAndExclusions) {
  TargetRules rules =
      Rules(R"("target_modules": "All-Linear", "exclude_modules": ["k_proj", "1.mlp.up_proj"])");
  EXPECT_TRUE(Targets(rules, Name(0, Module::kUp)));
  EXPECT_FALSE(Targets(rules, Name(1, Module::kUp)));
  EXPECT_FALSE(Targets(rules, Name(2, Module::kK)));
  TargetRules regex = Rules(R"("target_modules": "all-linear", "exclude_modules": ".*mlp.*")");
  EXPECT_TRUE(Targets(regex, Name(0, Module::kQ)));
  EXPECT_FALSE(Targets(regex, Name(0, Module::kUp)));
}

TEST(TargetRules, LayersToTransform) {
  TargetRules one = Rules(R"("layers_to_transform": 1)");
  EXPECT_TRUE(Targets(one, Name(1, Module::kQ)));
  EXPECT_FALSE(Targets(one, Name(0, Module::kQ)));
  TargetRules list = Rules(R"("layers_to_transform": [0, 2], "layers_pattern": ["h", "layers"])");
  EXPECT_TRUE(Targets(list, Name(2, Module::kV)));
  EXPECT_FALSE(Targets(list, Name(1, Module::kV)));
  TargetRules other = Rules(R"("layers_to_transform": [0], "layers_pattern": "blocks")");
  EXPECT_FALSE(Targets(other, Name(0, Module::kV)));
  // A full path is adapted whatever its layer, as in PEFT.
  TargetRules whole =
      Rules(R"("layers_to_transform": [0], "target_modules": ["model.layers.2.self_attn.q_proj"])");
  EXPECT_TRUE(Targets(whole, Name(2, Module::kQ)));
}

int RankOf(TargetRules& rules, const std::string& name) {
  const auto r = rules.LoraRank({&name, 1});
  EXPECT_TRUE(r.ok()) << r.status();
  return r.ok() ? *r : -1;
}

TEST(TargetRules, PatternKeysMatchAsPefts) {
  const std::string q1 = Name(1, Module::kQ), q11 = "model.layers.11.self_attn.q_proj";
  const struct {
    const char* key;
    bool q1, q11;
  } kCases[] = {
      {"q_proj", true, true},
      {"proj", false, false},
      {"layers.1.self_attn.q_proj", true, false},
      {"1.self_attn.q_proj", true, false},  // not the end of "11"
      {"layers\\\\.1\\\\..*", true, false},
      {"layers.1..*", true, true},  // an open dot matches any character
      {"^model.layers.1.self_attn.q_proj", true, false},
      {"^layers.1.self_attn.q_proj", false, false},
      {"model\\\\.layers\\\\.1\\\\.self_attn\\\\.q_proj", true, false},
      {"self.attn.q.proj", true, true},
      {"(q|k)_proj", true, true},
      {"k_proj|q_proj", true, true},
      {"layers\\\\.1[0-9]\\\\..*", false, true},
  };
  for (const auto& c : kCases) {
    TargetRules rules = Rules(std::string("\"rank_pattern\": {\"") + c.key + "\": 3}");
    EXPECT_EQ(RankOf(rules, q1) == 3, c.q1) << c.key;
    EXPECT_EQ(RankOf(rules, q11) == 3, c.q11) << c.key;
  }
}

TEST(TargetRules, TheFirstKeyOfTheFileWins) {
  TargetRules rules = Rules(R"("rank_pattern": {"q_proj": 2, "layers.1.*": 5, "a_proj": 7})");
  EXPECT_EQ(RankOf(rules, Name(1, Module::kQ)), 2);
  EXPECT_EQ(RankOf(rules, Name(1, Module::kK)), 5);
  EXPECT_EQ(RankOf(rules, Name(0, Module::kK)), 8);
  const std::vector<std::string> unused = rules.Unused();
  EXPECT_EQ(unused.back(), "rank_pattern[a_proj] matches nothing");
}

TEST(TargetRules, BadAndCatastrophicPatternsAreRefused) {
  for (const char* extra :
       {R"("target_modules": "(a")", R"("target_modules": "\\Qx\\E")",
        R"("rank_pattern": {"a)(b": 1})", R"("alpha_pattern": {"[": 1})",
        R"("exclude_modules": "*")", R"("layers_pattern": "(", "layers_to_transform": [0])"}) {
    const auto config = ParsePeftConfig(TestConfig(extra));
    ASSERT_TRUE(config.ok()) << config.status();
    const auto rules = TargetRules::Create(*config);
    ASSERT_FALSE(rules.ok()) << extra;
    EXPECT_EQ(GetErrorDetail(rules.status())->reason, Reason::kConfigInvalid);
  }
  TargetRules slow = Rules(R"("target_modules": "((((.*)*)*)*)*x")");
  const std::string name = Name(0, Module::kQ);
  const auto targets = slow.Targets({&name, 1});
  ASSERT_FALSE(targets.ok());
  EXPECT_NE(std::string(targets.status().message()).find("too long"), std::string::npos);
}

TEST(PythonPattern, TranslationKeepsPythonsMeaning) {
  EXPECT_EQ(PythonToIcu(R"(a\.b\Z)"), R"(a\.b\z)");
  EXPECT_EQ(PythonToIcu("(?P<n>x)"), "(?<n>x)");
  EXPECT_EQ(PythonToIcu("a{,3}"), "a{0,3}");
  EXPECT_EQ(PythonToIcu("(?i)a(?i:b)"), "(?i)a(?i:b)");
  EXPECT_EQ(PythonToIcu("[a[b]"), "[a\\[b]");
  EXPECT_EQ(PythonToIcu("[]a]"), "[\\]a]");
  EXPECT_EQ(PythonToIcu("[^]a&&b]"), "[^\\]a\\&\\&b]");
  for (const char* different :
       {R"(\Qa\E)", R"(\p{L})", R"(\h)", R"(\z)", "(?P>x)", "a(?i)b", "[a--b]", "\\", "[a"}) {
    EXPECT_FALSE(PythonToIcu(different).has_value()) << different;
  }
}

TEST(PythonPattern, FullMatchAndIndex) {
  auto p = PythonPattern::Compile("[a[]+\\d{,2}", "f");
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_TRUE(*p->FullMatch("a[a12"));
  EXPECT_FALSE(*p->FullMatch("a123"));
  EXPECT_FALSE(*p->FullMatch("xa1"));
  auto index = PythonPattern::Compile("(?:^|.*?\\.)layers\\.(?P<idx>\\d+)\\.", "f");
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(*index->MatchIndex("model.layers.12.mlp.experts.3.up"), "12");
  EXPECT_FALSE(index->MatchIndex("model.blocks.1.x")->has_value());
}

}  // namespace
}  // namespace rootstock
