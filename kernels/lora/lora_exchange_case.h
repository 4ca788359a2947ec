// The ranks of a group whose fully sharded adapters lack parts of v: for tests of the exchange.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/lora/lora_exchange.h"

namespace rootstock::kernels::cuda {

constexpr int kExchangeLayers = 3, kExchangeLayer = 2, kExchangeTokens = 6, kExchangeMembers = 4;

// A rank of a group with kExchangeMembers members: 1 is replicated and must stay as it is.
// The sharded ones have lora_ranks {5, 9, 1}, {3, 0, 16} and {64, 2, 7} at the targets.
constexpr std::array<std::array<int, kMaxLoraTargets>, kExchangeMembers> kExchangeRanks = {
    {{5, 9, 1}, {8, 8, 8}, {3, 0, 16}, {64, 2, 7}}};

inline float ExchangeComponent(int member, int target, int r) {
  return static_cast<float>(1000 * member + 300 * target + r + 1);
}

// *One thread.*
class ExchangeRank {
 public:
  ExchangeRank(int tp_size, int tp_rank, const LoraTargets& targets, bool gather, int splits)
      : tp_size_(tp_size),
        tp_rank_(tp_rank),
        targets_(targets),
        gather_(gather),
        splits_(splits),
        v_(size_t{kExchangeMembers} * kMaxLoraTargets * splits * kMaxLoraRank) {
    std::vector<LoraExchangeMember> members;
    std::vector<float> v(v_.size(), NAN);
    for (int m = 0; m < kExchangeMembers; ++m) {
      std::vector<LoraSiteEntry> sites(3 * kExchangeLayers * kModules);
      for (int t = 0; t < targets.count; ++t) {
        const int held = Held(m, t);
        At(sites, 0, t).lora_rank = held;
        At(sites, gather ? 1 : 2, t).lora_rank = kExchangeRanks[m][t];
        for (int r = 0; r < held; ++r) PutSplits(m, t, r, held, v);
      }
      const LoraSiteEntry* device = tables_.emplace_back(sites).get();
      if (m == 1) continue;
      const int width = (MaxRank(m) + tp_size - 1) / tp_size;
      members.push_back({device, m, width_, width});
      width_ += width;
    }
    v_.Set(v);
    count_.Set({static_cast<int32_t>(members.size())});
    members_ = std::make_unique<DeviceArray<LoraExchangeMember>>(members);
    data_ = std::make_unique<DeviceArray<float>>(size_t{kMaxLoraTargets} * tp_size * width_);
  }

  LoraExchangeStep exchange() const {
    return {count_.get(),    members_->get(), kExchangeMembers, width_,
            kExchangeLayers, tp_size_,        tp_rank_,         data_->get()};
  }
  LoraStep step() const {
    LoraStep out;
    out.v = v_.get();
    out.v_floats = v_.size();
    out.max_members = kExchangeMembers;
    return out;
  }
  size_t floats() const {
    return gather_ ? LoraGatherFloats(exchange(), targets_) : LoraSumFloats(exchange(), targets_);
  }
  void Pack() { PackLora(step(), exchange(), targets_, gather_, kExchangeTokens, nullptr); }
  void Unpack() { UnpackLora(step(), exchange(), targets_, gather_, kExchangeTokens, nullptr); }
  std::vector<float> data() const { return data_->Get(); }
  void set_data(const std::vector<float>& data) { data_->Set(data); }

  // v of every sharded member is whole; the others' is as it was.
  void Check() const {
    const std::vector<float> v = v_.Get();
    for (int m = 0; m < kExchangeMembers; ++m) {
      for (int t = 0; t < targets_.count; ++t) {
        const int rank = kExchangeRanks[m][t], padded = (rank + 15) / 16 * 16;
        for (int r = 0; r < rank; ++r) {
          float sum = 0;
          for (int s = 0; s < splits_; ++s) sum += v[Place(m, t) + s * padded + r];
          ASSERT_EQ(sum, (m == 1 ? 1.0f : tp_total()) * ExchangeComponent(m, t, r))
              << m << " " << t << " " << r;
        }
        for (int i = rank; i < padded && m != 1; ++i) ASSERT_EQ(v[Place(m, t) + i], 0.0f);
      }
    }
  }

 private:
  static int MaxRank(int m) {
    return std::max({kExchangeRanks[m][0], kExchangeRanks[m][1], kExchangeRanks[m][2]});
  }
  // A sum's parts are whole components of every rank, the same here.
  float tp_total() const { return gather_ ? 1.0f : static_cast<float>(tp_size_); }
  int Piece(int t) const { return (tp_rank_ + kExchangeLayer + targets_.module[t]) % tp_size_; }
  int Share(int m, int t) const { return (kExchangeRanks[m][t] + tp_size_ - 1) / tp_size_; }
  int First(int m, int t) const {
    return gather_ && m != 1 ? std::min(kExchangeRanks[m][t], Piece(t) * Share(m, t)) : 0;
  }
  int Held(int m, int t) const {
    if (!gather_ || m == 1) return kExchangeRanks[m][t];
    return std::min(kExchangeRanks[m][t], (Piece(t) + 1) * Share(m, t)) - First(m, t);
  }
  size_t Place(int m, int t) const {
    return (size_t(m) * kMaxLoraTargets + t) * splits_ * kMaxLoraRank;
  }
  // The splits of component r, which add up to it.
  void PutSplits(int m, int t, int r, int held, std::vector<float>& v) const {
    const int padded = (held + 15) / 16 * 16;
    const float whole = ExchangeComponent(m, t, First(m, t) + r);
    for (int s = 0; s < splits_; ++s) {
      v[Place(m, t) + s * padded + r] = s == 0 ? whole - static_cast<float>(splits_ - 1) : 1.0f;
    }
  }
  LoraSiteEntry& At(std::vector<LoraSiteEntry>& sites, int view, int t) const {
    return sites[(view * kExchangeLayers + kExchangeLayer) * kModules + targets_.module[t]];
  }
  const int tp_size_, tp_rank_;
  const LoraTargets targets_;
  const bool gather_;
  const int splits_;
  int width_ = 0;
  DeviceArray<float> v_;
  DeviceArray<int32_t> count_{1};
  std::vector<DeviceArray<LoraSiteEntry>> tables_;
  std::unique_ptr<DeviceArray<LoraExchangeMember>> members_;
  std::unique_ptr<DeviceArray<float>> data_;
};

// q, k, v of a gather; o of a sum.
inline LoraTargets ExchangeTargets(int in, bool gather) {
  LoraTargets targets{kExchangeLayer, gather ? 3 : 1};
  targets.in = in;
  for (int t = 0; t < targets.count; ++t) targets.module[t] = gather ? t : 3;
  return targets;
}

}  // namespace rootstock::kernels::cuda
