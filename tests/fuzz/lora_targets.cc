#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/canonical.h"
#include "common/lora/peft_config.h"
#include "common/lora/peft_fields.h"
#include "common/lora/peft_loader.h"
#include "common/lora/target_rules.h"
#include "common/lora/test_dir.h"
#include "common/safetensors/header.h"
#include "tests/fuzz/fuzz_target.h"

namespace rootstock {
namespace {

constexpr uint64_t kMaxData = 1 << 20;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The JSON header of a safetensors file.
std::string HeaderOf(const std::string& file) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file[i]);
  return file.substr(8, length);
}

// The largest number before a ']': the size of the data that a header speaks of, if it is right.
uint64_t DataBytes(const std::string& header) {
  uint64_t most = 0;
  for (size_t at = header.find(']'); at != std::string::npos; at = header.find(']', at + 1)) {
    size_t begin = at;
    while (begin > 0 && header[begin - 1] >= '0' && header[begin - 1] <= '9') --begin;
    uint64_t value = 0;
    std::from_chars(header.data() + begin, header.data() + at, value);
    if (value <= kMaxData) most = std::max(most, value);
  }
  return most;
}

std::vector<std::string> HeaderWords() {
  return {"\"dtype\":\"F32\"",
          "\"shape\":[1,2]",
          "\"data_offsets\":[0,4]",
          "\"__metadata__\":{",
          "\"BF16\"",
          "\"F16\"",
          "\"I64\"",
          "\"F8_E4M3\"",
          "[",
          "]",
          "{",
          "}",
          ",",
          ":",
          "\\u0000",
          "\\ud800",
          ".lora_A.weight",
          ".lora_B.weight",
          "model.layers.0.self_attn",
          "\"rootstock.lora\"",
          "\""};
}

// Sorted by place, the tensors cover the data without overlap or hole.
void CheckHeader(const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (const TensorInfo& tensor : header.tensors) {
    uint64_t bytes = DTypeBytes(tensor.dtype);
    for (const int64_t dim : tensor.shape) {
      Require(dim >= 0, "a dimension is negative");
      bytes *= static_cast<uint64_t>(dim);
    }
    Require(bytes == tensor.bytes(), "shape and offsets disagree");
    if (bytes > 0) places.emplace_back(tensor.begin, tensor.end);
  }
  std::ranges::sort(places);
  uint64_t end = 0;
  for (const auto& [first, last] : places) {
    Require(first == end, "tensors overlap or leave a hole");
    end = last;
  }
  Require(end == data_bytes, "tensors do not cover the data");
}

absl::StatusOr<std::string> RunHeader(const std::string& input) {
  const auto length = SafetensorsHeaderBytes(Bytes(input).first(std::min<size_t>(8, input.size())),
                                             input.size(), "f", {});
  if (length.ok()) Require(*length + 8 <= input.size(), "a header is longer than its file");
  const uint64_t data_bytes = DataBytes(input);
  ASSIGN_OR_RETURN(const SafetensorsHeader header,
                   ParseSafetensorsHeader(Bytes(input), data_bytes, "f", {}));
  CheckHeader(header, data_bytes);
  return absl::StrCat("tensors ", std::min<size_t>(header.tensors.size(), 20), " metadata ",
                      std::min<size_t>(header.metadata.size(), 5));
}

absl::StatusOr<std::string> RunConfig(const std::string& input) {
  ASSIGN_OR_RETURN(const PeftConfig config, ParsePeftConfig(input));
  Require(config.r >= 1, "an accepted lora_rank is not positive");
  ASSIGN_OR_RETURN(TargetRules rules, TargetRules::Create(config));
  int targets = 0;
  for (const char* name : {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj"}) {
    const std::vector<std::string> names = {name, std::string("base_model.model.") + name};
    ASSIGN_OR_RETURN(const bool targeted, rules.Targets(names));
    targets += targeted;
    RETURN_IF_ERROR(rules.LoraRank(names).status());
    RETURN_IF_ERROR(rules.Alpha(names).status());
  }
  return absl::StrCat("targets ", targets, " unused ", std::min<size_t>(rules.Unused().size(), 3),
                      " harmless ", std::min<size_t>(config.harmless_fields.size(), 5));
}

absl::StatusOr<std::string> RunCanonical(const std::string& input) {
  const ModelSpec model = TestModel();
  const std::string file = WithLength(input, std::string(DataBytes(input), '\0'));
  ASSIGN_OR_RETURN(const CanonicalAdapter adapter, CanonicalAdapter::Parse(Bytes(file), model));
  Require(adapter.modules().size() == adapter.spec().modules.size(), "modules without tensors");
  for (const auto& module : adapter.spec().modules) {
    Require(module.lora_rank >= 1 && module.lora_rank <= kMaxLoraRank, "a lora_rank is absurd");
    Require(module.layer >= 0 && module.layer < model.num_layers, "a layer is none of the model's");
  }
  return absl::StrCat("modules ", adapter.spec().modules.size());
}

// Of one module.
TestTensors HalfTensors() {
  TestTensors tensors;
  AddModule(tensors, TestModel(), 1, Module::kV, 1);
  for (auto& [name, tensor] : tensors) {
    tensor = Numbers(tensor.shape[0], tensor.shape[1], 1, "BF16");
  }
  return tensors;
}

}  // namespace

FuzzTarget SafetensorsTarget() {
  return {.name = "safetensors",
          .seeds = {HeaderOf(SafetensorsBytes(QvTensors(TestModel(), 2))),
                    HeaderOf(SafetensorsBytes(HalfTensors())),
                    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],)"
                    R"("data_offsets":[0,24]},"b":{"dtype":"F16","shape":[],)"
                    R"("data_offsets":[24,26]},"c":{"dtype":"BF16","shape":[0,4],)"
                    R"("data_offsets":[26,26]}})",
                    "{}"},
          .words = HeaderWords(),
          .run = RunHeader};
}

FuzzTarget PeftConfigTarget() {
  FuzzTarget target{
      .name = "config",
      .seeds = {TestConfig(), TestConfig(R"("target_modules": ".*\\.(q|v)_proj", "use_rslora": true,
                              "exclude_modules": ["o_proj"], "lora_dropout": 0.1)"),
                TestConfig(R"("target_modules": "all-linear", "exclude_modules": "(gate|up)_proj",
                              "rank_pattern": {"q_proj": 4, "^model\\.layers\\.0\\..*": 16},
                              "alpha_pattern": {"v_proj": 3.5}, "bias": "none")"),
                TestConfig(R"("layers_to_transform": [0, 2, 5], "layers_pattern": "layers",
                              "init_lora_weights": true, "modules_to_save": null)")},
      .words = {"\"",      "[",    "]",  "{",      "}",      ",",    ":",     "null",
                "true",    "(?:",  ".*", "\\\\d+", "[^a-z]", "a{2}", "(?=x)", "(a+)+$",
                "\\u00e9", "\\\\", "|",  "q_proj", "layers", "\xff", "1e308", "all-linear"},
      .run = RunConfig};
  for (const PeftField& field : PeftFields()) {
    target.words.push_back(absl::StrCat("\"", std::string(field.name), "\": "));
  }
  return target;
}

FuzzTarget CanonicalTarget() {
  const TestDir dir("fuzz");
  std::vector<std::string> seeds;
  for (const auto& [config, tensors] :
       {std::pair(R"("r": 2)", QvTensors(TestModel(), 2)),
        std::pair(R"("r": 1, "target_modules": ["v_proj"])", HalfTensors())}) {
    dir.WriteAdapter(TestConfig(config), tensors);
    const auto adapter = LoadPeftAdapter(dir.path(), TestModel(), {});
    Require(adapter.ok(), "the seed adapter is right");
    seeds.push_back(HeaderOf(EncodeCanonical(*adapter, TestModel())));
  }
  return {.name = "canonical", .seeds = seeds, .words = HeaderWords(), .run = RunCanonical};
}

}  // namespace rootstock
