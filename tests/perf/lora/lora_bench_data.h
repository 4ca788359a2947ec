// Adapters of random weights and steps over them, for benches: as many layers as asked for, so that
// rotating over them leaves nothing in the second cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/lora/lora_rows.h"

namespace rootstock::kernels::cuda {

// Random bf16 in device memory. *One thread.*
inline std::unique_ptr<DeviceArray<std::byte>> RandomBf16(size_t count, float spread) {
  constexpr size_t kPiece = size_t{1} << 21;
  std::mt19937 engine(5);
  std::vector<uint16_t> piece(std::min(count, kPiece));
  for (uint16_t& x : piece) {
    x = Bf16Bits((static_cast<float>(engine() % 65536) / 32768.0f - 1.0f) * spread);
  }
  auto out = std::make_unique<DeviceArray<std::byte>>(count * 2);
  for (size_t at = 0; at < count; at += kPiece) {
    cudaMemcpy(out->get() + at * 2, piece.data(), std::min(kPiece, count - at) * 2,
               cudaMemcpyDefault);
  }
  return out;
}

// Adapters that the smallest of a step's graphs is for: kFewGroups, half as many as rows or as
// many. Steps without a graph have room for their own alone.
inline int RoomForAdapters(int tokens, int adapters) {
  if (tokens > kDecodeTokens) return adapters;
  for (const int room : {8, tokens / 2}) {
    if (adapters <= room && room < tokens) return room;
  }
  return tokens;
}

// The LoRA side of one site: its adapters at each of `layers`, and the step of `tokens` tokens.
// *One thread.*
class BenchLora {
 public:
  // Of `targets` (layer 0). Adapters share out the tokens: by turns, of long steps as runs.
  BenchLora(const std::byte* slab, size_t slab_bytes, const LoraTargets& targets, int layers,
            int lora_rank, int tokens, int adapters)
      : targets_(targets) {
    PlaceRows(slab_bytes, layers, lora_rank, adapters);
    std::vector<LoraGroupEntry> groups;
    std::vector<int32_t> members;
    for (int a = 0; a < adapters; ++a) {
      const int begin = static_cast<int>(members.size());
      for (int t = 0; t < tokens; ++t) {
        const int64_t of = tokens > kDecodeTokens ? int64_t{t} * adapters / tokens : t % adapters;
        if (of == a) members.push_back(t);
      }
      groups.push_back({sites_->get() + static_cast<size_t>(a) * layers * kModules, begin,
                        static_cast<int>(members.size()) - begin});
    }
    const std::vector<float> scales(members.size(), 1.0f);
    std::vector<LoraRow> rows(tokens + members.size());
    std::vector<int32_t> row_of(tokens);
    const int room = RoomForAdapters(tokens, adapters);
    std::vector<LoraTile> tiles(MaxLoraTiles(tokens, room));
    FillLoraRows(groups.data(), adapters, members.data(), scales.data(), tokens,
                 static_cast<int>(tiles.size()), rows.data(), row_of.data(), tiles.data());
    num_groups_ = std::make_unique<DeviceArray<int32_t>>(std::vector<int32_t>{adapters});
    groups.resize(room);
    groups_ = std::make_unique<DeviceArray<LoraGroupEntry>>(groups);
    members_ = std::make_unique<DeviceArray<int32_t>>(members);
    rows_ = std::make_unique<DeviceArray<LoraRow>>(rows);
    row_of_ = std::make_unique<DeviceArray<int32_t>>(row_of);
    tiles_ = std::make_unique<DeviceArray<LoraTile>>(tiles);
    v_ = std::make_unique<DeviceArray<float>>(VFloats(tokens, targets.in));
    step_.slab = slab;
    step_.num_groups = num_groups_->get();
    step_.groups = groups_->get();
    step_.tokens = members_->get();
    step_.rows = rows_->get();
    step_.row_of = row_of_->get();
    step_.tiles = tiles_->get();
    step_.max_tiles = static_cast<int>(tiles.size());
    step_.max_groups = room;
    step_.max_members = tokens;
    step_.max_lora_rank = lora_rank;
    step_.v = v_->get();
    step_.v_floats = v_->size();
  }

  const LoraStep& step() const { return step_; }
  LoraTargets targets(int layer) const {
    LoraTargets out = targets_;
    out.layer = layer;
    return out;
  }

 private:
  // Rows in the order of a page: an adapter's layers, modules, A then B.
  void PlaceRows(size_t slab_bytes, int layers, int lora_rank, int adapters) {
    std::vector<uint32_t> offsets;
    size_t at = 0;
    const auto place = [&](int elements) {
      const size_t units = (static_cast<size_t>(elements) * 2 + 127) / 128;
      if ((at + units) * 128 > slab_bytes) at = 0;
      offsets.push_back(static_cast<uint32_t>(at));
      at += units;
    };
    for (int i = 0; i < adapters * layers * targets_.count; ++i) {
      for (int r = 0; r < lora_rank; ++r) place(targets_.in);
      for (int r = 0; r < lora_rank; ++r) place(targets_.features[i % targets_.count]);
    }
    offsets_ = std::make_unique<DeviceArray<uint32_t>>(offsets);
    std::vector<LoraSiteEntry> sites(static_cast<size_t>(adapters) * layers * kModules);
    for (int i = 0; i < adapters * layers; ++i) {
      for (int t = 0; t < targets_.count; ++t) {
        const uint32_t* rows =
            offsets_->get() + static_cast<size_t>(i * targets_.count + t) * 2 * lora_rank;
        sites[static_cast<size_t>(i) * kModules + targets_.module[t]] = {rows, rows + lora_rank,
                                                                         lora_rank, 1.0f};
      }
    }
    sites_ = std::make_unique<DeviceArray<LoraSiteEntry>>(sites);
  }

  LoraTargets targets_;
  LoraStep step_;
  std::unique_ptr<DeviceArray<uint32_t>> offsets_;
  std::unique_ptr<DeviceArray<LoraSiteEntry>> sites_;
  std::unique_ptr<DeviceArray<int32_t>> num_groups_, members_, row_of_;
  std::unique_ptr<DeviceArray<LoraGroupEntry>> groups_;
  std::unique_ptr<DeviceArray<LoraRow>> rows_;
  std::unique_ptr<DeviceArray<LoraTile>> tiles_;
  std::unique_ptr<DeviceArray<float>> v_;
};

}  // namespace rootstock::kernels::cuda
