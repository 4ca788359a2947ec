#include "worker/runtime/table_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "worker/device/cpu_copy_lane.h"

namespace rootstock {
namespace {

constexpr size_t kPiece = size_t{60} << 10;

// Counts what is taken of the device.
class TakingLane : public CpuCopyLane {
 public:
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    if (full_) return absl::ResourceExhaustedError("full");
    ++taken_;
    return CpuCopyLane::Allocate(bytes, purpose);
  }

  bool full_ = false;
  int taken_ = 0;
};

class TableMemoryTest : public testing::Test {
 protected:
  std::shared_ptr<std::byte> Take(size_t bytes) {
    auto piece = memory_->Take(bytes);
    EXPECT_TRUE(piece.ok()) << piece.status();
    std::memset(piece->get(), 1, bytes);
    return *std::move(piece);
  }

  TakingLane lane_;
  std::optional<TableMemory> memory_{std::in_place, lane_};
};

TEST_F(TableMemoryTest, WhatWasGivenBackIsUsedAgain) {
  std::shared_ptr<std::byte> first = Take(kPiece);
  const std::byte* at = first.get();
  const auto second = Take(kPiece);
  EXPECT_NE(second.get(), at);
  first = nullptr;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Take(kPiece - i).get(), at);
  EXPECT_EQ(lane_.taken_, 1);
}

TEST_F(TableMemoryTest, PiecesThatAreHeldLieApart) {
  std::vector<std::pair<std::shared_ptr<std::byte>, size_t>> held;
  for (int i = 0; i < 400; ++i) {
    const size_t bytes = 1 + static_cast<size_t>(i) * 977 % 90000;
    held.emplace_back(Take(bytes), bytes);
    std::memset(held.back().first.get(), i % 251, bytes);
    if (i % 3 == 2) held[static_cast<size_t>(i) / 2] = {};
  }
  for (size_t i = 0; i < held.size(); ++i) {
    for (size_t b = 0; b < held[i].second; ++b) {
      ASSERT_EQ(static_cast<int>(held[i].first.get()[b]), static_cast<int>(i % 251)) << i;
    }
  }
}

// Half a chunk is there whenever loads begin.
TEST_F(TableMemoryTest, IsFilledAhead) {
  ASSERT_TRUE(memory_->Refill().ok() && memory_->Refill().ok());
  EXPECT_EQ(lane_.taken_, 1);
  std::vector<std::shared_ptr<std::byte>> held;
  for (int round = 0; round < 8; ++round) {
    const int before = lane_.taken_;
    for (size_t bytes = 0; bytes + kPiece <= TableMemory::kChunkBytes / 2; bytes += kPiece) {
      held.push_back(Take(kPiece));
    }
    EXPECT_EQ(lane_.taken_, before);
    ASSERT_TRUE(memory_->Refill().ok());
  }
}

TEST_F(TableMemoryTest, AFullDeviceIsSaidAndLargePiecesHaveChunksOfTheirOwn) {
  const auto large = Take(TableMemory::kChunkBytes + 1);
  lane_.full_ = true;
  EXPECT_EQ(memory_->Take(kPiece).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_->Refill().code(), absl::StatusCode::kResourceExhausted);
  lane_.full_ = false;
  EXPECT_NE(Take(kPiece), nullptr);
}

TEST_F(TableMemoryTest, OfAFullDeviceAnyPieceIsTakenThatIsLargeEnough) {
  std::shared_ptr<std::byte> large = Take(TableMemory::kChunkBytes + 1);
  const std::byte* at = large.get();
  lane_.full_ = true;
  large = nullptr;
  const auto small = Take(kPiece);
  EXPECT_EQ(small.get(), at);
  EXPECT_FALSE(memory_->Take(kPiece).ok());
}

TEST_F(TableMemoryTest, PiecesOutliveIt) {
  const auto piece = Take(kPiece);
  memory_.reset();
  std::memset(piece.get(), 2, kPiece);
}

}  // namespace
}  // namespace rootstock
