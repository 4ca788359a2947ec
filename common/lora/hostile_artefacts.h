// For tests: adapters broken in one way each, with the reason that each must be refused with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/lora/test_dir.h"

namespace rootstock {

constexpr char kWeights[] = "adapter_model.safetensors";
constexpr char kConfig[] = "adapter_config.json";

// A right adapter to be broken.
struct Artefact {
  const TestDir& dir;
  ModelSpec model = TestModel();
  TestTensors tensors = QvTensors(model, 8);
  std::string config = TestConfig();
  bool write = true;  // config and tensors, after the breaking

  std::string File() const { return SafetensorsBytes(tensors); }
  void Raw(const std::string& weights) {
    dir.Write(kConfig, config);
    dir.Write(kWeights, weights);
    write = false;
  }
  TestTensor& First() { return tensors.begin()->second; }
};

struct Hostile {
  std::string name;
  Reason reason;
  std::function<void(Artefact&)> break_it;
};

std::vector<Hostile> HostileConfigs();
std::vector<Hostile> HostileHeaders();
std::vector<Hostile> HostileTensors();
std::vector<Hostile> HostileFiles();
std::vector<Hostile> HostileLinks();
std::vector<Hostile> HostileVariants();  // kinds of breaks at every place

}  // namespace rootstock
