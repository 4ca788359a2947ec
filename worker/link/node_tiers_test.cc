// What a group does about its nodes' tiers, and what it tells of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "common/base/status.h"
#include "common/objects/blob_key.h"
#include "worker/link/link_rig.h"

namespace rootstock {
namespace {

constexpr Epoch kEpoch{1, 1};

absl::Status Spoilt() {
  return MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", "x",
                   "was spoilt");
}

absl::Status Unreadable() {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "path", "x", "I/O error");
}

// A rank finds the node's file spoilt, or can't read it, when it lays it out: the nodes get it
// anew, once.
TEST(NodeTiers, SpoiltContentIsFetchedAgainOnce) {
  LinkRig rig;
  std::atomic<int> fetches = 0;
  const Digest digest = Sha256Of("content");
  if (rig.last()) {
    rig.executor.stage_outcomes = {Spoilt(),         absl::OkStatus(), Unreadable(),
                                   absl::OkStatus(), Spoilt(),         Spoilt()};
  }
  rig.executor.before = [&](const Command&) {
    // As that rank does.
    const auto& outcomes = rig.executor.stage_outcomes;
    if (rig.last() && !outcomes.empty() && !outcomes.front().ok()) {
      rig.Disk().Remove(digest).value();
    }
  };
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, PrefetchAdapter{digest, 7, {}, /*to_host=*/true});
        const Completion healed = s.ReadCompletion();
        EXPECT_TRUE(healed.outcome.ok()) << healed.outcome;
        EXPECT_EQ(healed.source, FetchSource::kCoordinator);
        EXPECT_EQ(fetches, 2);
        s.Send(CommandId(2), kEpoch, PrefetchAdapter{digest, 7, {}, /*to_host=*/true});
        const Completion readable = s.ReadCompletion();
        EXPECT_TRUE(readable.outcome.ok()) << readable.outcome;
        EXPECT_EQ(fetches, 3);
        s.Send(CommandId(3), kEpoch, PrefetchAdapter{digest, 7, {}, /*to_host=*/true});
        const Completion failed = s.ReadCompletion();
        EXPECT_EQ(GetErrorDetail(failed.outcome)->reason, Reason::kDigestMismatch);
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) {
        coordinator.blobs[digest] = "content";
        coordinator.before_fetch = [&](const Digest&) { ++fetches; };
      });
  EXPECT_EQ(code, 0);
  EXPECT_THAT(rig.executor.log, testing::ElementsAre("attach 1.1 seqs=64", "stage 1", "stage 1",
                                                     "stage 2", "stage 2", "stage 3", "stage 3"));
}

// More than a message of 4 MB holds comes in parts, in order with what changes meanwhile.
TEST(NodeTiers, AReportOfAHundredThousandAdaptersIsToldInParts) {
  constexpr size_t kCount = 100'000;
  LinkRig rig;
  const auto digest_of = [](size_t i) {
    Digest digest;
    std::memcpy(digest.bytes.data(), &i, sizeof(i));
    digest.bytes[31] = 0xff;  // as hashes are, no shorter on the wire
    return digest;
  };
  for (size_t i = 0; i < kCount; ++i) {
    rig.executor.host_tier.push_back({{digest_of(i), Tier::kHost, 1 << 30}, true});
  }
  const Digest last = digest_of(0xffff);  // in their order
  rig.executor.before = [&](const Command& command) {
    if (command.id.value == 1) rig.executor.host_changes = {{{last, Tier::kHost, 0}, false}};
  };
  const int code = rig.Run([&](ScriptedStream& s, int stream) {
    if (stream > 0) {  // the report did not come through
      s.ReadHello();
      s.Refuse("attached already");
      return grpc::Status::OK;
    }
    std::set<Digest> held;
    for (const CachedAdapter& adapter : s.Attach(kEpoch).cached) held.insert(adapter.digest);
    EXPECT_GT(held.size(), kCount / 10);
    EXPECT_LT(held.size(), kCount);
    EXPECT_FALSE(held.contains(last));
    const uint64_t parts = held.empty() ? 0 : kCount / held.size() + 1;
    for (uint64_t id = 1; id <= parts; ++id) {
      s.Send(CommandId(id), kEpoch,
             id == 1 ? decltype(Command::kind)(DropAdapter{last, kAllTiers})
                     : decltype(Command::kind)(StepPlan{}));
      for (const TierChange& change : s.ReadCompletion().tier_changes) {
        if (change.present) held.insert(change.adapter.digest);
        if (!change.present) held.erase(change.adapter.digest);
      }
    }
    EXPECT_EQ(held.size(), kCount - 1);
    EXPECT_FALSE(held.contains(last));
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
}

// What comes out of host memory, its file unread, is used on the disk too.
TEST(NodeTiers, ALoadKeepsItsFileFromLeavingFirst) {
  namespace fs = std::filesystem;
  LinkRig rig;
  const Digest digest = Sha256Of("content");
  const fs::path file = rig.Disk().PathOf(digest);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const int code = rig.Run(
      [&](ScriptedStream& s, int) {
        s.Attach(kEpoch);
        s.Send(CommandId(1), kEpoch, LoadAdapter{digest, 7, {}, {PageId(3)}});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        // Looks at the disk after the load's use of it.
        s.Send(CommandId(2), kEpoch, PrefetchAdapter{Sha256Of("other")});
        EXPECT_TRUE(s.ReadCompletion().outcome.ok());
        EXPECT_GT(fs::last_write_time(file), long_ago + std::chrono::minutes(30));
        s.Leave();
        s.AtEnd();
        return grpc::Status::OK;
      },
      [&](FakeCoordinator& coordinator) {
        coordinator.blobs[Sha256Of("other")] = "other";
        fs::create_directories(rig.cache);
        std::ofstream(file) << "content";
        fs::last_write_time(file, long_ago);
      });
  EXPECT_EQ(code, 0);
}

TEST(NodeTiers, TheObjectStoreIsAskedBeforeTheCoordinator) {
  LinkRig rig;
  const Digest digest = Sha256Of("content");
  const std::filesystem::path store = rig.cache / "store";
  rig.object_store = "file://" + store.string();
  if (rig.first()) {
    std::filesystem::create_directories(store / "blobs");
    std::ofstream(store / BlobKey(digest)) << "content";
  }
  const int code = rig.Run([&](ScriptedStream& s, int) {
    s.Attach(kEpoch);
    s.Send(CommandId(1), kEpoch, PrefetchAdapter{digest, 7, {}, /*to_host=*/true});
    const Completion completion = s.ReadCompletion();
    EXPECT_TRUE(completion.outcome.ok()) << completion.outcome;
    EXPECT_EQ(completion.source, FetchSource::kObject);
    s.Leave();
    s.AtEnd();
    return grpc::Status::OK;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace rootstock
