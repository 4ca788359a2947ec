#include "common/model/model_spec.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/status.h"

namespace rootstock {
namespace {

using Json = nlohmann::json;

Json Base(const std::string& architecture = "LlamaForCausalLM", const std::string& type = "llama") {
  return Json{{"architectures", {architecture}},
              {"model_type", type},
              {"hidden_size", 64},
              {"intermediate_size", 96},
              {"num_hidden_layers", 3},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"vocab_size", 320},
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"hidden_act", "silu"},
              {"eos_token_id", 2}};
}

ModelSpec Parse(const Json& config) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

// Refused with `reason`, and the message names the field.
void ExpectRefused(const Json& config, Reason reason, const std::string& field) {
  const auto spec = ParseModelSpec(config.dump());
  ASSERT_FALSE(spec.ok()) << field;
  EXPECT_EQ(GetErrorDetail(spec.status())->reason, reason) << spec.status();
  EXPECT_NE(std::string(spec.status().message()).find(field), std::string::npos) << spec.status();
}

TEST(ModelSpec, ReadsTheCaseModels) {
  const std::filesystem::path models = ROOTSTOCK_SOURCE_DIR "/tests/cases/models";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const auto spec = LoadModelSpec(entry.path());
    ASSERT_TRUE(spec.ok()) << entry.path() << spec.status();
    EXPECT_EQ(spec->hidden_size, 64);
    EXPECT_EQ(spec->head_dim, 16);
    ++seen;
  }
  EXPECT_GE(seen, 5);
}

TEST(ModelSpec, ReadsLlama) {
  const ModelSpec m = Parse(Base());
  EXPECT_EQ(m.architecture, Architecture::kLlama);
  EXPECT_EQ(m.num_layers, 3);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.num_kv_heads, 2);
  EXPECT_FLOAT_EQ(m.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(m.tie_word_embeddings);
  EXPECT_FALSE(m.qkv_bias);
  EXPECT_EQ(m.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_DOUBLE_EQ(m.rope.theta, 10000.0);
}

TEST(ModelSpec, ArchitecturesDiffer) {
  EXPECT_TRUE(Parse(Base("Qwen2ForCausalLM", "qwen2")).qkv_bias);
  const ModelSpec qwen3 = Parse(Base("Qwen3ForCausalLM", "qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);  // its class default
  Json mistral = Base("MistralForCausalLM", "mistral");
  EXPECT_EQ(Parse(mistral).architecture, Architecture::kMistral);
  mistral.erase("num_key_value_heads");
  ExpectRefused(mistral, Reason::kModelInvalid, "num_key_value_heads");
  ExpectRefused(Base("GPT2LMHeadModel", "gpt2"), Reason::kUnsupportedModel, "GPT2LMHeadModel");
  ExpectRefused(Base("LlamaForCausalLM", "qwen2"), Reason::kUnsupportedModel, "model_type");
}

TEST(ModelSpec, ModuleShapes) {
  Json config = Base();
  config["head_dim"] = 32;
  const ModelSpec m = Parse(config);
  EXPECT_EQ(m.out_features(Module::kQ), 128);
  EXPECT_EQ(m.out_features(Module::kV), 64);
  EXPECT_EQ(m.in_features(Module::kO), 128);
  EXPECT_EQ(m.out_features(Module::kO), 64);
  EXPECT_EQ(m.in_features(Module::kDown), 96);
  EXPECT_EQ(m.in_features(Module::kUp), 64);
  EXPECT_EQ(m.out_features(Module::kGate), 96);
  EXPECT_EQ(ModulePath(2, Module::kDown), "model.layers.2.mlp.down_proj");
  EXPECT_EQ(ModulePath(0, Module::kO), "model.layers.0.self_attn.o_proj");
  for (const Module module : kAllModules) {
    EXPECT_EQ(ModuleFromName(ModuleName(module)), module);
  }
  EXPECT_FALSE(ModuleFromName("c_attn"));
}

TEST(ModelSpec, FieldsThatChangeTheMathematicsAreRefusedByName) {
  const std::vector<std::pair<std::string, Json>> bad = {
      {"attention_bias", true},
      {"mlp_bias", true},
      {"quantization_config", {{"bits", 4}}},
      {"hidden_act", "gelu"},
      {"partial_rotary_factor", 0.5},
      {"final_logit_softcapping", 30.0},
      {"logits_scaling", 8.0},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}},
      {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {1, 2}}}},
      {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"attention_factor", 2.0}}},
      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {"sliding_window", 256},
      {"auto_map", {{"AutoModelForCausalLM", "x.Y"}}},
      {"some_new_mixing", 3},
      {"another_mode", "fancy"},
  };
  for (const auto& [field, value] : bad) {
    Json config = Base();
    config[field] = value;
    ExpectRefused(config, Reason::kUnsupportedModel, field);
  }
}

TEST(ModelSpec, NeutralValuesAndMetadataPass) {
  Json config = Base();
  config.update({{"attention_bias", false},
                 {"mlp_bias", false},
                 {"partial_rotary_factor", 1.0},
                 {"pretraining_tp", 2},
                 {"some_new_mixing", nullptr},
                 {"other_new_thing", false},
                 {"third", ""},
                 {"fourth", Json::array()},
                 {"_name_or_path", "x/y"},
                 {"torch_dtype", "bfloat16"},
                 {"id2label", {{"0", "A"}}},
                 {"transformers.js_config", {{"dtype", "q4"}}},
                 {"layer_types", {"full_attention", "full_attention", "full_attention"}},
                 {"sliding_window", 512},
                 {"eos_token_id", {2, 7}}});
  EXPECT_EQ(Parse(config).eos_token_ids, (std::vector<int32_t>{2, 7}));
}

TEST(ModelSpec, SlidingWindowOnlyWhenItIsFelt) {
  Json qwen = Base("Qwen2ForCausalLM", "qwen2");
  qwen["sliding_window"] = 128;
  Parse(qwen);  // use_sliding_window defaults to false
  qwen["use_sliding_window"] = true;
  ExpectRefused(qwen, Reason::kUnsupportedModel, "sliding_window");
  qwen["max_window_layers"] = 3;  // of 3: no layer has a window
  Parse(qwen);
  Json mistral = Base("MistralForCausalLM", "mistral");
  mistral["max_position_embeddings"] = 32768;
  ExpectRefused(mistral, Reason::kUnsupportedModel, "sliding_window");  // 4096 unless null
  mistral["sliding_window"] = nullptr;
  Parse(mistral);
}

TEST(ModelSpec, ImpossibleNumbersAreRefusedByName) {
  const std::vector<std::pair<std::string, Json>> bad = {
      {"hidden_size", 0},
      {"hidden_size", "64"},
      {"hidden_size", 65},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", 1 << 20},
      {"num_key_value_heads", 3},
      {"vocab_size", nullptr},
      {"head_dim", 15},
      {"rms_norm_eps", -1.0},
      {"rope_theta", 0.0},
      {"vocab_size", 1e300},
      {"max_position_embeddings", 1.5},
      {"eos_token_id", "</s>"},
      {"tie_word_embeddings", 1},
      {"vocab_size", UINT64_MAX},
      {"intermediate_size", true},
  };
  for (const auto& [field, value] : bad) {
    Json config = Base();
    config[field] = value;
    ExpectRefused(config, Reason::kModelInvalid, field);
  }
}

TEST(ModelSpec, DuplicateAndMalformedJson) {
  EXPECT_FALSE(ParseModelSpec(R"({"hidden_size": 64, "hidden_size": 65})").ok());
  EXPECT_FALSE(ParseModelSpec("{").ok());
  EXPECT_FALSE(ParseModelSpec("[]").ok());
}

TEST(ModelSpec, RopeInBothForms) {
  Json config = Base();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_DOUBLE_EQ(Parse(config).rope.theta, 500000.0);
  config["rope_theta"] = 10000.0;
  ExpectRefused(config, Reason::kModelInvalid, "rope_parameters");
  config = Base();
  config["rope_theta"] = 1e6;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const ModelSpec linear = Parse(config);
  EXPECT_EQ(linear.rope.kind, RopeSpec::Kind::kLinear);
  const auto f = linear.RopeInverseFrequencies();
  ASSERT_EQ(f.size(), 8u);
  EXPECT_FLOAT_EQ(f[0], 0.25f);
  EXPECT_FLOAT_EQ(f[4], static_cast<float>(std::pow(1e6, -0.5) / 4));
}

TEST(ModelSpec, Llama3Rope) {
  Json config = Base();
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  const auto f = Parse(config).RopeInverseFrequencies();
  // transformers 4.57, _compute_llama3_parameters
  EXPECT_NEAR(f[0], 1.0, 1e-7);
  const double raw = std::pow(500000.0, -2.0 / 16);  // wavelength 32.4: between 16 and 64
  const double s = (64.0 * raw / (2 * M_PI) - 1.0) / 3.0;
  EXPECT_NEAR(f[1], (1 - s) * raw / 8 + s * raw, 1e-7);
  EXPECT_FLOAT_EQ(f[7], static_cast<float>(std::pow(500000.0, -14.0 / 16) / 8));
  config["rope_scaling"].erase("factor");
  ExpectRefused(config, Reason::kModelInvalid, "factor");
}

class ModelFiles : public testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        std::filesystem::path(testing::TempDir()) / ("model_spec_test" + std::to_string(getpid()));
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }
  std::filesystem::path dir_;
};

TEST_F(ModelFiles, MissingConfigNamesTheDirectory) {
  const auto spec = LoadModelSpec(dir_);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().message(), "model=" + dir_.string() + ": has no config.json");
  Write("config.json", Base().dump());
  EXPECT_TRUE(LoadModelSpec(dir_).ok());
}

TEST_F(ModelFiles, GenerationDefaults) {
  auto none = LoadGenerationDefaults(dir_);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->temperature);
  EXPECT_TRUE(none->eos_token_ids.empty());
  Write("generation_config.json",
        R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": true,
            "repetition_penalty": 1.1, "eos_token_id": [1, 2], "transformers_version": "4"})");
  const auto some = LoadGenerationDefaults(dir_);
  ASSERT_TRUE(some.ok());
  EXPECT_FLOAT_EQ(*some->temperature, 0.6f);
  EXPECT_FLOAT_EQ(*some->top_p, 0.9f);
  EXPECT_EQ(*some->top_k, 20);
  EXPECT_TRUE(*some->do_sample);
  EXPECT_FALSE(some->min_p);
  EXPECT_EQ(some->eos_token_ids, (std::vector<int32_t>{1, 2}));
  Write("generation_config.json", R"({"temperature": -1})");
  EXPECT_FALSE(LoadGenerationDefaults(dir_).ok());
}

}  // namespace
}  // namespace rootstock
