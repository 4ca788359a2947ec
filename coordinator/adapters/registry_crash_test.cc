// The registry when its process, its power or its disk goes away in the middle of a write.
#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_store.h"
#include "coordinator/adapters/testing/faulty_vfs.h"
#include "coordinator/adapters/testing/registry_model.h"
#include "coordinator/adapters/testing/scratch.h"
#include "coordinator/content/kill_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<Registry>> OpenIn(const fs::path& data) {
  return Registry::Open(
      {.data_dir = data, .base_name = "base", .unix_ms = [] { return int64_t{1}; }});
}

std::string ReadAll(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Does what the seed says until it is killed; a byte for each change that was acknowledged.
[[noreturn]] void RunUntilKilled(const fs::path& data, uint32_t seed, int acknowledged) {
  auto registry = OpenIn(data);
  if (!registry.ok()) _exit(1);
  std::mt19937 random(seed);
  RegistryModel model;
  for (;;) {
    const RegistryOp op = model.Draw(random);
    model.Apply(op);
    ApplyTo(**registry, op);
    if (write(acknowledged, "!", 1) != 1) _exit(1);
  }
}

// How many changes were acknowledged before the kill, which comes at some moment.
size_t KillWhileItRuns(const fs::path& data, uint32_t seed, std::mt19937& random) {
  return KillWhileItWorks([&](int end) { RunUntilKilled(data, seed, end); }, 1 + random() % 40,
                          random);
}

TEST(RegistryCrash, F12AKillLosesNothingAcknowledgedAndHalvesNothing) {
  std::mt19937 random(7);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const ScratchDirectory scratch("kill");
    const size_t acknowledged = KillWhileItRuns(scratch.path(), seed, random);
    RegistryModel model;
    std::mt19937 same(seed);
    for (size_t i = 0; i < acknowledged; ++i) model.Apply(model.Draw(same));
    const std::string before = model.Show();
    model.Apply(model.Draw(same));  // may have been done and not told
    auto registry = OpenIn(scratch.path());
    ASSERT_TRUE(registry.ok()) << registry.status();
    ASSERT_THAT(ShowRegistry(**registry), testing::AnyOf(before, model.Show()))
        << "seed " << seed << " after " << acknowledged;
    size_t blobs = 0;
    for (const auto& entry : fs::directory_iterator(scratch.path() / "blobs")) {
      blobs += entry.is_regular_file() ? 1 : 0;  // what the kill left is set aside
    }
    std::set<std::string> digests;
    for (const std::string tenant : {"t0", "t1"}) {
      for (const AdapterEntry& entry : (*registry)->List(tenant, {}, 1000)) {
        EXPECT_EQ(entry.state, AdapterState::kActive);
        digests.insert(entry.digest.Hex());
      }
    }
    EXPECT_EQ(blobs, digests.size());
  }
}

// One switch of an alias, written to a disk that keeps what of it the crash lets through.
class AliasSwitch : public testing::Test {
 protected:
  void SetUp() override {
    auto registry = OpenIn(scratch_.path() / "live");
    ASSERT_TRUE(registry.ok()) << registry.status();
    for (const char* text : {"one", "two"}) {
      ASSERT_TRUE((*registry)->RegisterFrom("a", "t", true, [&] { return LoadedText(text); }).ok());
    }
    ASSERT_TRUE((*registry)->SetAlias("prod", "t", {{"a", 1}}).ok());
    for (const char* file : {"registry.db", "registry.db-wal"}) {
      before_[file] = ReadAll(scratch_.path() / "live" / file);
    }
    vfs_.record = &events_;
    ASSERT_TRUE((*registry)->SetAlias("prod", "t", {{"a", 2}}).ok());
    vfs_.record = nullptr;
  }

  // The alias's version after a restart on those files.
  uint32_t VersionAfter(const FileImages& files) {
    const fs::path data = scratch_.path() / "crashed";
    fs::remove(data / "registry.db-shm");
    fs::create_directories(data);
    for (const auto& [name, bytes] : files) {
      std::ofstream(data / name, std::ios::binary | std::ios::trunc) << bytes;
    }
    auto store = RegistryStore::Open(data);
    EXPECT_TRUE(store.ok()) << store.status();
    const auto aliases = (*store)->Aliases();
    EXPECT_TRUE(aliases.ok()) << aliases.status();
    if (!aliases.ok() || aliases->size() != 1 || aliases->at(0).targets.size() != 1) return 0;
    return aliases->at(0).targets[0].version;
  }

  FaultyVfs vfs_;
  ScratchDirectory scratch_{"switch"};
  FileImages before_;
  std::vector<FaultyVfs::Event> events_;
};

TEST_F(AliasSwitch, F12ACrashAtAnyByteLeavesTheOldTargetOrTheNewOne) {
  FileImages files = before_;
  ASSERT_EQ(VersionAfter(files), 1u);
  uint32_t last = 1;
  size_t cuts = 0;
  for (const FaultyVfs::Event& event : events_) {
    for (size_t bytes = 0; bytes < event.bytes.size(); ++bytes, ++cuts) {
      FaultyVfs::Event part = event;
      part.bytes.resize(bytes);
      FileImages cut = files;
      Apply(part, cut);
      const uint32_t version = VersionAfter(cut);
      ASSERT_TRUE(version == last || (last == 1 && version == 2))
          << version << " after " << bytes << " bytes of a write to " << event.file;
      last = version;
    }
    Apply(event, files);
  }
  EXPECT_EQ(VersionAfter(files), 2u);
  EXPECT_GT(cuts, 4096u);
}

// Power loss: of what no sync has asked for, any part may be missing.
TEST_F(AliasSwitch, F12WhatWasAcknowledgedIsSyncedAndWhatIsNotMayBeMissing) {
  FileImages synced = before_;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].kind != FaultyVfs::Event::kSync) continue;
    for (size_t k = 0; k < i; ++k) {
      if (events_[k].file == events_[i].file) Apply(events_[k], synced);
    }
  }
  EXPECT_EQ(VersionAfter(synced), 2u);  // nothing that wasn't synced is needed
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    FileImages files = before_;
    const size_t until = random() % (events_.size() + 1);
    size_t lost = 0;
    for (size_t i = 0; i < until; ++i) {
      bool kept = random() % 2 == 0;
      for (size_t k = i + 1; k < until; ++k) {
        kept |= events_[k].kind == FaultyVfs::Event::kSync && events_[k].file == events_[i].file;
      }
      if (kept) {
        Apply(events_[i], files);
      } else {
        ++lost;
      }
    }
    const uint32_t version = VersionAfter(files);
    ASSERT_TRUE(version == 1 || version == 2) << version;
    if (until == events_.size()) {
      ASSERT_EQ(version, 2u) << lost;
    }
  }
}

class RegistryOnABadDisk : public testing::Test {
 protected:
  void Open() {
    registry_.reset();
    auto opened = OpenIn(scratch_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    registry_ = *std::move(opened);
  }
  FaultyVfs vfs_;
  ScratchDirectory scratch_{"bad-disk"};
  std::unique_ptr<Registry> registry_;
  RegistryModel model_;
};

TEST_F(RegistryOnABadDisk, AStartOnAFullDiskNamesThePath) {
  Open();
  registry_.reset();
  vfs_.fail = [](FaultyVfs::Event::Kind) { return SQLITE_FULL; };
  const absl::Status full = OpenIn(scratch_.path()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::AllOf(testing::HasSubstr(scratch_.path().string()),
                             testing::HasSubstr("disk is full")));
  vfs_.fail = nullptr;
  Open();
}

TEST_F(RegistryOnABadDisk, F11AFullDiskRefusesChangesAndServesOn) {
  Open();
  const auto add = [&](const std::string& text) {
    return registry_->RegisterFrom("a", "t0", true, [&] { return LoadedText(text); });
  };
  ASSERT_TRUE(add("one").ok());
  ASSERT_TRUE(registry_->SetAlias("prod", "t0", {{"a", 1}}).ok());
  const std::string before = ShowRegistry(*registry_);
  struct Case {
    int sqlite;
    absl::StatusCode code;
    Reason reason;
  };
  for (const Case c : {Case{SQLITE_FULL, absl::StatusCode::kResourceExhausted, Reason::kNoSpace},
                       Case{SQLITE_IOERR_WRITE, absl::StatusCode::kInternal, Reason::kIoError}}) {
    vfs_.fail = [&](FaultyVfs::Event::Kind) { return c.sqlite; };
    const absl::Status full = add("two").status();
    EXPECT_EQ(full.code(), c.code);
    EXPECT_EQ(GetErrorDetail(full)->reason, c.reason);
    EXPECT_THAT(std::string(full.message()), testing::HasSubstr("SQLite"));
    EXPECT_EQ(registry_->SetAlias("prod", "t0", {{"a", 1, 2}}).status().code(), c.code);
    EXPECT_EQ(registry_->Pin("a", "t0", 1, "").status().code(), c.code);
    EXPECT_EQ(registry_->Unregister("a", "t0").status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(registry_->RemoveAlias("prod", "t0").code(), c.code);
    EXPECT_EQ(ShowRegistry(*registry_), before);
    EXPECT_EQ(registry_->Resolve("prod", "t0", "r")->resolved, "a@1");
    EXPECT_EQ(registry_->Get("a", "t0")->receipt_json, "{}");
    vfs_.fail = nullptr;
  }
  EXPECT_TRUE(add("two").ok());
  EXPECT_TRUE(registry_->SetAlias("prod", "t0", {{"a", 2}}).ok());
  Open();
  EXPECT_EQ(registry_->Resolve("prod", "t0", "r")->resolved, "a@2");
}

TEST_F(RegistryOnABadDisk, F11ChangesThatFailLeaveNothingWhereverTheyFail) {
  Open();
  std::mt19937 random(5);
  int failed = 0;
  for (int step = 0; step < 4000; ++step) {
    int left = static_cast<int>(random() % 12);
    const int code = random() % 2 == 0 ? SQLITE_FULL : SQLITE_IOERR_FSYNC;
    vfs_.fail = [&](FaultyVfs::Event::Kind) { return left-- > 0 ? SQLITE_OK : code; };
    const RegistryOp op = model_.Draw(random);
    RegistryModel after = model_;
    const absl::StatusCode expected = after.Apply(op);
    const absl::StatusCode got = ApplyTo(*registry_, op);
    vfs_.fail = nullptr;
    if (got == expected) {
      model_ = after;
    } else {
      ++failed;
      ASSERT_TRUE(got == absl::StatusCode::kInternal || got == absl::StatusCode::kResourceExhausted)
          << op.Text() << absl::StatusCodeToString(got);
    }
    ASSERT_EQ(ShowRegistry(*registry_), model_.Show()) << op.Text();
    if (random() % 100 == 0) {
      // What failed at its last sync may be there after all: the same call then succeeds.
      if (got == expected) {
        Open();
        ASSERT_EQ(ShowRegistry(*registry_), model_.Show()) << op.Text();
      }
    }
  }
  EXPECT_GT(failed, 200);
}

}  // namespace
}  // namespace rootstock
