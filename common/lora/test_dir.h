// For tests: writes PEFT directories, right ones and broken ones.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/base/half.h"
#include "common/model/model_spec.h"

namespace rootstock {

// Four heads of 16 over two KV heads, hidden 64, ffn 96, three layers.
inline ModelSpec TestModel() {
  ModelSpec m;
  m.num_layers = 3;
  m.num_heads = 4;
  m.num_kv_heads = 2;
  m.head_dim = 16;
  m.hidden_size = 64;
  m.ffn_size = 96;
  m.vocab_size = 320;
  m.max_position = 512;
  return m;
}

struct TestTensor {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;
};
using TestTensors = std::map<std::string, TestTensor>;

// [rows, columns] of small numbers that differ by `seed`.
inline TestTensor Numbers(int64_t rows, int64_t columns, int seed = 1,
                          const std::string& dtype = "F32") {
  TestTensor t{dtype, {rows, columns}, ""};
  for (int64_t i = 0; i < rows * columns; ++i) {
    const float v = static_cast<float>((i * 7 + seed * 13) % 31 - 15) / 16.0f;
    if (dtype == "F32") {
      t.bytes.append(reinterpret_cast<const char*>(&v), 4);
    } else {
      const uint16_t half = FloatToBF16(v);
      t.bytes.append(reinterpret_cast<const char*>(&half), 2);
    }
  }
  return t;
}

// The PEFT spelling of a module's two tensors' common part.
inline std::string PeftPath(int layer, Module m) {
  return "base_model.model." + ModulePath(layer, m);
}

inline void AddPair(TestTensors& tensors, const std::string& path, int lora_rank, int in, int out,
                    int seed = 1) {
  tensors[path + ".lora_A.weight"] = Numbers(lora_rank, in, seed);
  tensors[path + ".lora_B.weight"] = Numbers(out, lora_rank, seed + 1);
}

inline void AddModule(TestTensors& tensors, const ModelSpec& model, int layer, Module m,
                      int lora_rank, const std::string& path = "") {
  AddPair(tensors, path.empty() ? PeftPath(layer, m) : path, lora_rank, model.in_features(m),
          model.out_features(m), layer * 7 + static_cast<int>(m));
}

// q and v of all layers.
inline TestTensors QvTensors(const ModelSpec& model, int lora_rank) {
  TestTensors tensors;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    AddModule(tensors, model, layer, Module::kQ, lora_rank);
    AddModule(tensors, model, layer, Module::kV, lora_rank);
  }
  return tensors;
}

inline std::string WithLength(const std::string& json, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
  return out + json + data;
}

inline std::string SafetensorsBytes(const TestTensors& tensors) {
  std::string json = "{", data;
  for (const auto& [name, t] : tensors) {
    if (json.size() > 1) json += ",";
    json += "\"" + name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < t.shape.size(); ++i) {
      json += (i > 0 ? "," : "") + std::to_string(t.shape[i]);
    }
    json += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += t.bytes;
    json += std::to_string(data.size()) + "]}";
  }
  return WithLength(json + "}", data);
}

// A directory under the test's temporary folder, emptied at the start. Not thread-safe.
class TestDir {
 public:
  explicit TestDir(const std::string& name)
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("rootstock_" + name + "_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestDir() { std::filesystem::remove_all(path_); }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }
  void WriteAdapter(const std::string& config, const TestTensors& tensors) const {
    Write("adapter_config.json", config);
    Write("adapter_model.safetensors", SafetensorsBytes(tensors));
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]} with
// `extra` ("\"a\": 1, …") in front of what it does not name.
inline std::string TestConfig(const std::string& extra = "") {
  std::string out = "{";
  const auto add = [&](const std::string& key, const std::string& value) {
    if (extra.find("\"" + key + "\"") != std::string::npos) return;
    out += (out.size() > 1 ? ", \"" : "\"") + key + "\": " + value;
  };
  if (!extra.empty()) out += extra;
  add("peft_type", "\"LORA\"");
  add("r", "8");
  add("lora_alpha", "16");
  add("target_modules", "[\"q_proj\", \"v_proj\"]");
  return out + "}";
}

}  // namespace rootstock
