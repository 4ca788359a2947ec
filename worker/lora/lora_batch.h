// Groups the tokens of a step by adapter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/lora/device_adapter.h"
#include "worker/ops/ops.h"

namespace rootstock {

// Tokens [begin, end) run with `adapter`, its scales times `scale`.
struct AdapterRun {
  int begin = 0;
  int end = 0;
  const DeviceAdapter* adapter = nullptr;
  float scale = 1.0f;
};

// The groups of one step. A token in several runs is summed in the order of the runs: runs that
// overlap an earlier one go to a later layer of groups, so an adapter is read once unless it is
// stacked at different depths. Re-used from step to step. *Step thread only.*
class LoraBatch {
 public:
  // runs: as ForwardBatch::segments. Valid until the next Build.
  std::span<const LoraGroup> Build(std::span<const AdapterRun> runs, int num_tokens);

 private:
  struct Member {
    uint32_t depth;  // number of earlier runs that hold this token
    uint32_t adapter;
    int32_t token;
    float scale;
  };

  std::vector<Member> members_;
  std::vector<uint32_t> depth_;  // [tokens]
  std::vector<const DeviceAdapter*> adapters_;
  std::vector<int32_t> tokens_;
  std::vector<float> scales_;
  std::vector<LoraGroup> groups_;
};

}  // namespace rootstock
