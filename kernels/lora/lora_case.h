// A step with adapters for the tests of the LoRA kernels and of the kernels that expand: rows
// scattered over a slab, tables on the device, and the CPU's kernels as reference.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/lora/lora.h"
#include "kernels/lora/lora_cuda.h"
#include "kernels/lora/lora_rows.h"
#include "kernels/simd/test_data.h"

namespace rootstock::kernels::cuda {

// *One thread.*
class LoraCase {
 public:
  // One adapter: its rank and scale at each target, and where it runs. Its weights depend on
  // `seed`.
  struct Adapter {
    std::array<int, kMaxLoraTargets> rank = {};
    std::vector<int32_t> tokens;
    uint32_t seed = 0;
    std::vector<float> a[kMaxLoraTargets], b[kMaxLoraTargets];
    std::vector<uint32_t> a_rows[kMaxLoraTargets], b_rows[kMaxLoraTargets];
    float site_scale(int target) const { return 0.5f + 0.25f * static_cast<float>(target); }
    // Of a token; the same wherever the token stands.
    float scale() const { return 1.0f + 0.125f * static_cast<float>(seed % 5); }
  };

  LoraCase(Type type, int tokens, const LoraTargets& targets)
      : type_(type), tokens_(tokens), targets_(targets) {}

  void Add(std::array<int, kMaxLoraTargets> rank, std::vector<int32_t> tokens, uint32_t seed) {
    Adapter a;
    a.rank = rank;
    a.tokens = std::move(tokens);
    a.seed = seed;
    for (int i = 0; i < targets_.count; ++i) {
      a.a[i] = RandomFloats(static_cast<size_t>(rank[i]) * targets_.in, 1000 * seed + 2 * i);
      a.b[i] = RandomFloats(static_cast<size_t>(rank[i]) * targets_.features[i],
                            1000 * seed + 2 * i + 1);
      // So that the sums over `in` and lora_rank stay near 1.
      const float shrink = 1.0f / std::sqrt(static_cast<float>(targets_.in));
      const float expand = 1.0f / std::sqrt(static_cast<float>(std::max(rank[i], 1)));
      for (float& x : a.a[i]) x *= shrink;
      for (float& x : a.b[i]) x *= expand;
      RoundTo(type_, a.a[i]);
      RoundTo(type_, a.b[i]);
    }
    adapters_.push_back(std::move(a));
  }

  // The same token and adapters in a step of their own.
  LoraCase Alone(int32_t token) const {
    LoraCase out(type_, 1, targets_);
    for (const Adapter& a : adapters_) {
      if (std::count(a.tokens.begin(), a.tokens.end(), token) != 0) out.Add(a.rank, {0}, a.seed);
    }
    out.Build();
    return out;
  }

  // Adapters that the step has room for, at least.
  void set_room(int adapters) { room_ = adapters; }

  // Puts everything on the device.
  void Build() {
    Place();
    std::vector<std::byte> slab = Encode(type_, slab_);
    slab_device_ = std::make_unique<DeviceArray<std::byte>>(slab);
    BuildSites();
    BuildRows();
    v_ = std::make_unique<DeviceArray<float>>(
        VFloats(static_cast<int>(tokens_of_.size()) + 1, targets_.in));
  }

  LoraStep step() const {
    LoraStep s;
    s.slab = slab_device_->get();
    s.type = type_;
    s.num_groups = num_groups_->get();
    s.groups = groups_->get();
    s.tokens = members_->get();
    s.rows = rows_->get();
    s.row_of = row_of_->get();
    s.tiles = tiles_->get();
    s.max_tiles = static_cast<int>(tiles_->size());
    s.max_groups = MaxGroups();
    s.max_members = static_cast<int>(tokens_of_.size());
    s.max_lora_rank = 0;
    for (const Adapter& a : adapters_) {
      s.max_lora_rank = std::max({s.max_lora_rank, a.rank[0], a.rank[1], a.rank[2]});
    }
    s.v = v_->get();
    s.v_floats = v_->size();
    return s;
  }
  const LoraTargets& targets() const { return targets_; }
  Type type() const { return type_; }
  int tokens() const { return tokens_; }

  // out [tokens, width] += every adapter's delta, by the CPU's kernels.
  void AddReference(const std::vector<float>& x, int width, std::vector<float>& out) {
    std::vector<LoraPart> parts;
    std::vector<std::vector<float>> v, scales;
    v.reserve(adapters_.size() * targets_.count);
    scales.reserve(adapters_.size());
    for (const Adapter& a : adapters_) {
      scales.emplace_back(a.tokens.size(), a.scale());
      for (int i = 0; i < targets_.count; ++i) {
        v.emplace_back(a.tokens.size() * a.rank[i]);
        parts.push_back({a.a_rows[i].data(), a.b_rows[i].data(), a.rank[i], a.site_scale(i),
                         a.tokens.data(), scales.back().data(), static_cast<int>(a.tokens.size()),
                         targets_.column[i], targets_.features[i], v.back().data()});
      }
    }
    // The CPU's slab is f32: its offsets count units of fewer elements.
    const auto* slab = reinterpret_cast<const std::byte*>(slab_.data());
    std::vector<std::vector<uint32_t>> offsets;
    offsets.reserve(parts.size() * 2);
    for (LoraPart& part : parts) {
      part.a = Widen(part.a, part.lora_rank, offsets);
      part.b = Widen(part.b, part.lora_rank, offsets);
    }
    const int count = static_cast<int>(parts.size());
    kernels::LoraShrink(slab, parts.data(), count, x.data(), targets_.in, 2);
    kernels::LoraExpand(slab, parts.data(), count, out.data(), width, 2);
  }

 private:
  size_t Unit() const { return kLoraRowUnit / SizeOf(type_); }  // elements of a row unit
  size_t Units(int n) const { return (n + Unit() - 1) / Unit(); }

  // Rows of all adapters in a random order, with a hole of NaN before each.
  void Place() {
    std::vector<std::pair<const float*, std::pair<int, uint32_t*>>> rows;
    for (Adapter& a : adapters_) {
      for (int i = 0; i < targets_.count; ++i) {
        a.a_rows[i].resize(a.rank[i]);
        a.b_rows[i].resize(a.rank[i]);
        for (int r = 0; r < a.rank[i]; ++r) {
          rows.push_back(
              {&a.a[i][static_cast<size_t>(r) * targets_.in], {targets_.in, &a.a_rows[i][r]}});
          rows.push_back({&a.b[i][static_cast<size_t>(r) * targets_.features[i]],
                          {targets_.features[i], &a.b_rows[i][r]}});
        }
      }
    }
    std::mt19937 engine(7);
    std::shuffle(rows.begin(), rows.end(), engine);
    size_t units = 0;
    for (auto& [data, where] : rows) {
      *where.second = static_cast<uint32_t>(units + 1);
      units += 1 + Units(where.first);
    }
    slab_.assign((units + 1) * Unit(), NAN);
    for (auto& [data, where] : rows) {
      std::copy(data, data + where.first, slab_.begin() + *where.second * Unit());
    }
  }

  const uint32_t* Widen(const uint32_t* rows, int n,
                        std::vector<std::vector<uint32_t>>& keep) const {
    const uint32_t factor = static_cast<uint32_t>(4 / SizeOf(type_));
    std::vector<uint32_t> wide(rows, rows + n);
    for (uint32_t& row : wide) row *= factor;
    keep.push_back(std::move(wide));
    return keep.back().data();
  }

  void BuildSites() {
    const int sites = (targets_.layer + 1) * kModules;
    for (const Adapter& a : adapters_) {
      std::vector<LoraSiteEntry> table(sites);
      for (int i = 0; i < targets_.count; ++i) {
        const uint32_t* a_rows = offsets_.emplace_back(a.a_rows[i]).get();
        const uint32_t* b_rows = offsets_.emplace_back(a.b_rows[i]).get();
        table[targets_.layer * kModules + targets_.module[i]] = {a_rows, b_rows, a.rank[i],
                                                                 a.site_scale(i)};
      }
      const LoraSiteEntry* device = tables_.emplace_back(table).get();
      host_groups_.push_back(
          {device, static_cast<int32_t>(tokens_of_.size()), static_cast<int32_t>(a.tokens.size())});
      tokens_of_.insert(tokens_of_.end(), a.tokens.begin(), a.tokens.end());
      scales_.insert(scales_.end(), a.tokens.size(), a.scale());
    }
    num_groups_ = std::make_unique<DeviceArray<int32_t>>(
        std::vector<int32_t>{static_cast<int32_t>(host_groups_.size())});
    std::vector<LoraGroupEntry> groups = host_groups_;
    groups.resize(MaxGroups());
    groups_ = std::make_unique<DeviceArray<LoraGroupEntry>>(groups);
    members_ = std::make_unique<DeviceArray<int32_t>>(tokens_of_);
  }

  int MaxGroups() const { return std::max(static_cast<int>(adapters_.size()) + 3, room_); }
  void BuildRows() {
    std::vector<LoraRow> rows(tokens_ + tokens_of_.size());
    std::vector<int32_t> row_of(tokens_);
    std::vector<LoraTile> tiles(MaxLoraTiles(tokens_, MaxGroups()));
    FillLoraRows(host_groups_.data(), static_cast<int>(host_groups_.size()), tokens_of_.data(),
                 scales_.data(), tokens_, static_cast<int>(tiles.size()), rows.data(),
                 row_of.data(), tiles.data());
    rows_ = std::make_unique<DeviceArray<LoraRow>>(rows);
    row_of_ = std::make_unique<DeviceArray<int32_t>>(row_of);
    tiles_ = std::make_unique<DeviceArray<LoraTile>>(tiles);
  }

  Type type_;
  int tokens_;
  int room_ = 0;
  LoraTargets targets_;
  std::vector<Adapter> adapters_;
  std::vector<float> slab_;
  std::vector<int32_t> tokens_of_;  // of members
  std::vector<float> scales_;       // of members
  std::vector<LoraGroupEntry> host_groups_;
  std::vector<DeviceArray<uint32_t>> offsets_;
  std::vector<DeviceArray<LoraSiteEntry>> tables_;
  std::unique_ptr<DeviceArray<std::byte>> slab_device_;
  std::unique_ptr<DeviceArray<int32_t>> num_groups_, members_, row_of_;
  std::unique_ptr<DeviceArray<LoraGroupEntry>> groups_;
  std::unique_ptr<DeviceArray<LoraRow>> rows_;
  std::unique_ptr<DeviceArray<LoraTile>> tiles_;
  std::unique_ptr<DeviceArray<float>> v_;
};

// Who runs with what.
enum class Mix {
  kNone,
  kIdentical,
  kDistinct,
  kUniform,
  kZipf,
  kMixedRanks,
  kStacked,
  kDistinctRanks
};

// Adds adapters to an empty case. kDistinctRanks: an adapter a token, of ranks as kMixedRanks,
// which is: ranks 1 … 256, modules left alone, tokens without adapter, an adapter without tokens;
// tokens of an adapter stand apart.
inline void AddMix(Mix mix, LoraCase* to) {
  const int n = to->tokens();
  std::mt19937 engine(3);
  std::vector<std::vector<int32_t>> of;
  if (mix == Mix::kIdentical) of.resize(1);
  const bool distinct = mix == Mix::kDistinct || mix == Mix::kDistinctRanks;
  if (distinct) of.resize(n);
  if (mix == Mix::kUniform || mix == Mix::kZipf || mix == Mix::kStacked) of.resize(8);
  if (mix == Mix::kMixedRanks) of.resize(9);
  for (int32_t t = 0; t < n && !of.empty(); ++t) {
    size_t adapter = engine() % of.size();
    if (distinct) adapter = t;
    if (mix == Mix::kZipf) adapter = 7 >> (engine() % 4);
    if (mix == Mix::kMixedRanks && adapter == 8) continue;
    of[adapter].push_back(t);
    if (mix == Mix::kStacked && t % 3 == 0) of[(adapter + 1 + engine() % 7) % 8].push_back(t);
  }
  constexpr std::array<int, kMaxLoraTargets> kRanks[] = {{1, 5, 2},  {256, 8, 16},  {16, 0, 33},
                                                         {7, 64, 9}, {64, 16, 128}, {8, 8, 8},
                                                         {0, 0, 0},  {24, 40, 1},   {16, 16, 16}};
  for (size_t i = 0; i < of.size(); ++i) {
    const bool mixed =
        mix == Mix::kMixedRanks || mix == Mix::kStacked || mix == Mix::kDistinctRanks;
    to->Add(mixed ? kRanks[i % 9] : kRanks[8], of[i], static_cast<uint32_t>(i + 1));
  }
}

// The largest RelativeError of a row of `width`.
inline double RowError(const std::vector<float>& got, const std::vector<float>& want, int width) {
  if (got.size() != want.size()) return INFINITY;
  double worst = 0;
  for (size_t at = 0; at + width <= got.size(); at += width) {
    worst = std::max(worst, RelativeError({got.begin() + at, got.begin() + at + width},
                                          {want.begin() + at, want.begin() + at + width}));
  }
  return worst;
}

// Of results that are rounded to the type once, with v rounded to it on the way.
inline double Tolerance(Type type) { return type == Type::kF32 ? 1e-5 : 4e-3; }

}  // namespace rootstock::kernels::cuda
