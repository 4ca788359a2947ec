// How many pages a rank makes of what is free, on a device that says what that is.
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cpu_device.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/loaded_model.h"

namespace rootstock {
namespace {

const std::filesystem::path kModel = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama";
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Host memory of which so much is said to be left.
class SmallDevice : public CpuDevice {
 public:
  explicit SmallDevice(uint64_t free) : CpuDevice(1), free_(free) {}
  absl::StatusOr<uint64_t> FreeBytes() override { return free_; }

 private:
  const uint64_t free_;
};

// Has no room for one purpose.
class FullDevice : public SmallDevice {
 public:
  explicit FullDevice(std::string purpose)
      : SmallDevice(900 * kMiB), purpose_(std::move(purpose)) {}
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    if (purpose != purpose_) return CpuDevice::Allocate(bytes, purpose);
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, purpose, "cpu",
                     absl::StrCat("no ", bytes, " bytes"));
  }

 private:
  const std::string purpose_;
};

struct Planned {
  absl::Status status;
  PageGeometry geometry;
};

using Devices = std::vector<std::unique_ptr<Device>>;

// Of each rank after Prepare.
std::vector<Planned> PlanOn(Devices devices) {
  const int tp_size = static_cast<int>(devices.size());
  const ModelSpec spec = *LoadModelSpec(kModel);
  const TpPlan tp = *MakeTpPlan(spec, tp_size);
  PageGeometry geometry = *MakeGeometry(spec, tp, DType::kF32, {16, 2, 0});
  geometry.num_pages = 0;
  const auto group = std::make_shared<ThreadGroup>(tp_size);
  std::vector<Planned> out(tp_size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < tp_size; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadCommunicator communicator(group, rank);
      Backend backend = MakeCpuBackend(1);
      backend.device = std::move(devices[rank]);
      auto model = LoadedModel::Create({kModel, false, DType::kF32}, spec, tp, std::move(backend),
                                       geometry, communicator, {});
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ((*model)->info().geometry.num_pages, 0u);
      out[rank].status = (*model)->Prepare({64, 8, 8, 100, 8}, 0);
      out[rank].geometry = (*model)->info().geometry;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return out;
}

// free[r] bytes are left on rank r.
std::vector<Planned> Plan(const std::vector<uint64_t>& free) {
  Devices devices;
  for (const uint64_t bytes : free) devices.push_back(std::make_unique<SmallDevice>(bytes));
  return PlanOn(std::move(devices));
}

TEST(PagePlanTest, WhatIsFreeLessAReserveBecomesPages) {
  const Planned small = Plan({600 * kMiB})[0], large = Plan({700 * kMiB})[0];
  ASSERT_TRUE(small.status.ok()) << small.status;
  ASSERT_TRUE(large.status.ok()) << large.status;
  const auto bytes = [](const Planned& p) {
    return uint64_t{p.geometry.num_pages} * p.geometry.page_bytes;
  };
  // Of the 100 MiB more almost all, the rest for the tables of adapters.
  const uint64_t more = bytes(large) - bytes(small);
  EXPECT_GT(more, 60 * kMiB);
  EXPECT_LT(more, 100 * kMiB);
  EXPECT_LT(bytes(small), 88 * kMiB);
}

TEST(PagePlanTest, RanksTakeTheFewest) {
  const std::vector<Planned> ranks = Plan({900 * kMiB, 600 * kMiB});
  const Planned alone = Plan({600 * kMiB, 600 * kMiB})[0];
  for (const Planned& rank : ranks) {
    ASSERT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_EQ(rank.geometry.num_pages, alone.geometry.num_pages);
  }
}

TEST(PagePlanTest, NoRoomOnOneRankIsEveryRanksErrorWithTheSizes) {
  for (const Planned& rank : Plan({400 * kMiB, 900 * kMiB})) {
    ASSERT_EQ(rank.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(GetErrorDetail(rank.status)->reason, Reason::kNoMemory);
    EXPECT_NE(rank.status.message().find("MiB are free beside weights of"), std::string::npos);
  }
}

// The others neither hang nor go on without it, and all know why.
TEST(PagePlanTest, ARankThatCannotAllocateIsNamedByAll) {
  for (const char* purpose : {"num_pages", "workspace", "rope tables"}) {
    Devices devices;
    for (int rank = 0; rank < 2; ++rank) {
      if (rank == 1) devices.push_back(std::make_unique<FullDevice>(purpose));
      if (rank != 1) devices.push_back(std::make_unique<SmallDevice>(900 * kMiB));
    }
    for (const Planned& rank : PlanOn(std::move(devices))) {
      ASSERT_EQ(rank.status.code(), absl::StatusCode::kResourceExhausted) << purpose;
      EXPECT_EQ(GetErrorDetail(rank.status)->field, purpose);
      EXPECT_NE(rank.status.message().find(absl::StrCat("tp_rank 1: ", purpose, "=cpu: no ")),
                std::string::npos)
          << rank.status.message();
    }
  }
}

}  // namespace
}  // namespace rootstock
