#include "coordinator/content/store_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/objects/sync_log.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::chrono::hours kWeek(7 * 24);

TEST(StoreLedgerTest, KnowsWhatIsInTheStoreAndHasNoNameAnyMore) {
  std::string name = (fs::temp_directory_path() / "ledger-XXXXXX").string();
  const fs::path dir = mkdtemp(name.data());
  const Digest kept = Sha256Of("kept"), gone = Sha256Of("gone");
  {
    StoreLedger ledger(dir / "l");
    EXPECT_THAT(ledger.Open({kept}, kWeek)->gone, IsEmpty());
    const SyncLog log;
    EXPECT_TRUE(*ledger.Mark(gone));
    EXPECT_THAT(log.paths(), ElementsAre(fs::canonical(dir / "l").string()));
    EXPECT_FALSE(*ledger.Mark(gone));
    EXPECT_FALSE(*ledger.Mark(kept));  // by Open
  }
  StoreLedger again(dir / "l");
  again.Condemn(gone);
  EXPECT_THAT(again.Open({kept}, kWeek)->gone, ElementsAre(gone));
  EXPECT_TRUE(again.Unmark(gone).ok());
  again.Condemn(gone);  // what is gone already gets no mark
  EXPECT_THAT(again.Open({kept}, kWeek)->gone, IsEmpty());
  fs::remove_all(dir);
}

// A registry that is older than the store's content does not take it away.
TEST(StoreLedgerTest, WhatNobodyRemovedStaysForItsTime) {
  std::string name = (fs::temp_directory_path() / "ledger-XXXXXX").string();
  const fs::path dir = mkdtemp(name.data());
  const Digest lost = Sha256Of("lost");
  StoreLedger ledger(dir / "l");
  ASSERT_TRUE(ledger.Make().ok());
  ASSERT_TRUE(ledger.Mark(lost).ok());
  const auto age = [&](std::chrono::hours hours) {
    fs::last_write_time(dir / "l" / lost.Hex(), fs::file_time_type::clock::now() - hours);
  };
  age(kWeek * 2);  // long in the store
  EXPECT_THAT(ledger.Open({}, kWeek)->gone, IsEmpty());
  EXPECT_EQ(ledger.Open({}, kWeek)->unknown, 1u);
  EXPECT_EQ(ledger.Open({lost}, kWeek)->unknown, 0u);  // the registry is back
  age(kWeek * 2);
  EXPECT_EQ(ledger.Open({}, kWeek)->unknown, 1u);
  age(kWeek);
  EXPECT_THAT(ledger.Open({}, kWeek)->gone, ElementsAre(lost));
  EXPECT_FALSE(*ledger.Mark(lost));  // put again
  EXPECT_THAT(ledger.Open({}, kWeek)->gone, IsEmpty());
  EXPECT_THAT(ledger.Open({}, std::chrono::hours(0))->gone, ElementsAre(lost));
  fs::remove_all(dir);
}

TEST(StoreLedgerTest, WhatTellsNoTimeIsNotOld) {
  const auto now = fs::file_time_type::clock::now();
  EXPECT_FALSE(IsAtLeastAsOld("/proc/self/no-such-file", now));
  EXPECT_TRUE(IsAtLeastAsOld("/proc/self/exe", now));
}

}  // namespace
}  // namespace rootstock
