#include "coordinator/content/store_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/objects/sync_log.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(StoreLedgerTest, KnowsWhatIsInTheStoreAndHasNoNameAnyMore) {
  std::string name = (fs::temp_directory_path() / "ledger-XXXXXX").string();
  const fs::path dir = mkdtemp(name.data());
  const Digest kept = Sha256Of("kept"), gone = Sha256Of("gone");
  {
    StoreLedger ledger(dir / "l");
    EXPECT_THAT(*ledger.Open({kept}), IsEmpty());
    const SyncLog log;
    EXPECT_TRUE(*ledger.Mark(gone));
    EXPECT_THAT(log.paths(), ElementsAre(fs::canonical(dir / "l").string()));
    EXPECT_FALSE(*ledger.Mark(gone));
    EXPECT_FALSE(*ledger.Mark(kept));  // by Open
  }
  StoreLedger again(dir / "l");
  EXPECT_THAT(*again.Open({kept}), ElementsAre(gone));
  EXPECT_TRUE(again.Unmark(gone).ok());
  EXPECT_THAT(*again.Open({kept}), IsEmpty());
  fs::remove_all(dir);
}

}  // namespace
}  // namespace rootstock
