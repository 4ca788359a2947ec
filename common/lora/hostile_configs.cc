#include "common/lora/hostile_artefacts.h"

namespace rootstock {
namespace {

void ConfigIs(Artefact& a, const std::string& config) { a.config = config; }

// A rank_pattern of `count` keys that begin so.
std::string SlowKeys(const std::string& begin, int count) {
  std::string keys = "\"rank_pattern\": {";
  for (int i = 0; i < count; ++i) keys += "\"" + begin + std::to_string(i) + "\":1,";
  return keys + "\"x\":1}";
}

}  // namespace

std::vector<Hostile> HostileConfigs() {
  return {
      {"ConfigEmpty", Reason::kConfigInvalid, [](auto& a) { ConfigIs(a, ""); }},
      {"ConfigNotJson", Reason::kConfigInvalid, [](auto& a) { ConfigIs(a, "peft_type: LORA"); }},
      {"ConfigCut", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig().substr(0, 30)); }},
      {"ConfigList", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, "[" + TestConfig() + "]"); }},
      {"ConfigBinary", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, std::string("\0\1\2\3", 4)); }},
      {"ConfigBadUtf8", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"revision\": \"\xff\xfe\"")); }},
      {"ConfigNan", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"lora_alpha\": NaN")); }},
      {"ConfigHugeNumber", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"lora_alpha\": 1e999")); }},
      {"ConfigDeep", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"x\": " + std::string(60000, '['))); }},
      {"ConfigDeepObjects", Reason::kConfigInvalid,
       [](auto& a) {
         std::string deep;
         for (int i = 0; i < 10000; ++i) deep += "{\"a\":";
         ConfigIs(a, deep);
       }},
      {"ConfigManyKeys", Reason::kConfigInvalid,
       [](auto& a) {
         std::string keys = "\"rank_pattern\": {";
         for (int i = 0; i < 6000; ++i) keys += "\"" + std::to_string(i) + "\":1,";
         ConfigIs(a, TestConfig(keys + "\"x\":1}"));
       }},
      {"ConfigTooLarge", Reason::kSizeLimit,
       [](auto& a) { ConfigIs(a, TestConfig() + std::string(64 << 10, ' ')); }},
      {"ConfigDuplicate", Reason::kDuplicate,
       [](auto& a) { ConfigIs(a, TestConfig("\"r\": 8, \"r\": 4")); }},
      {"ConfigDuplicateEscaped", Reason::kDuplicate,
       [](auto& a) { ConfigIs(a, TestConfig("\"r\": 8, \"\\u0072\": 4")); }},
      {"RankZero", Reason::kConfigInvalid, [](auto& a) { ConfigIs(a, TestConfig("\"r\": 0")); }},
      {"RankNegative", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"r\": -8")); }},
      {"RankPatternZero", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"rank_pattern\": {\"v_proj\": 0}")); }},
      {"RankHuge", Reason::kRankTooHigh,
       [](auto& a) { ConfigIs(a, TestConfig("\"r\": 2000000000")); }},
      {"RankPatternHuge", Reason::kRankTooHigh,
       [](auto& a) { ConfigIs(a, TestConfig("\"rank_pattern\": {\"v_proj\": 257}")); }},
      {"RegexCatastrophic", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"target_modules\": \"(.*.*)*.*(.*)*Z\"")); }},
      {"RegexInRankPattern", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"rank_pattern\": {\"(([a-z_.0-9])+)+!\": 1}")); }},
      {"RegexesEachOfAnHonestTime", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig(SlowKeys("[a-z_.0-9]*?[a-z_.0-9]*?Q", 600))); }},
      {"RegexesSlowToCompile", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig(SlowKeys("((a|b|c|d){1,9}|[a-z]{1,9}){1,9}", 900))); }},
      {"RegexInvalid", Reason::kConfigInvalid,
       [](auto& a) { ConfigIs(a, TestConfig("\"target_modules\": \"((\"")); }},
      {"UnknownField", Reason::kUnknownField,
       [](auto& a) { ConfigIs(a, TestConfig("\"mixer\": \"product\"")); }},
      {"OtherMethod", Reason::kPeftType,
       [](auto& a) { ConfigIs(a, TestConfig("\"peft_type\": \"VERA\"")); }},
      {"Dora", Reason::kDora, [](auto& a) { ConfigIs(a, TestConfig("\"use_dora\": true")); }},
      {"Bias", Reason::kBias, [](auto& a) { ConfigIs(a, TestConfig("\"bias\": \"all\"")); }},
      {"LoraBias", Reason::kBias, [](auto& a) { ConfigIs(a, TestConfig("\"lora_bias\": true")); }},
      {"ModulesToSave", Reason::kModulesToSave,
       [](auto& a) { ConfigIs(a, TestConfig("\"modules_to_save\": [\"lm_head\"]")); }},
      {"Replication", Reason::kUnsupportedField,
       [](auto& a) { ConfigIs(a, TestConfig("\"layer_replication\": [[0, 4]]")); }},
  };
}

}  // namespace rootstock
