#include "coordinator/content/uploads/upload_index.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/content/uploads/upload_metrics.h"

namespace rootstock {
namespace {

using std::chrono::hours;

UploadIndex::Entry EntryOf(const std::string& tenant, const std::string& id, hours used) {
  return {tenant, {id, {{"a", 10, {}}, {"b", 10, {}, 3}}}, UploadIndex::Time(used)};
}

TEST(UploadIndexTest, CountsByTenantAndInAll) {
  UploadIndex index({.max_tenant_bytes = 20, .max_bytes = 30});
  UploadIndex::Entry& one = index.Add(EntryOf("t", "1", hours(1)));  // 3 bytes
  EXPECT_TRUE(index.Take(one, "a", 10, UploadIndex::Time(hours(2))).ok());
  EXPECT_EQ(one.state.files[0].received, 10u);
  UploadIndex::Entry& two = index.Add(EntryOf("t", "2", hours(1)));
  EXPECT_FALSE(index.Take(two, "a", 5, UploadIndex::Time(hours(2))).ok());  // 21
  EXPECT_TRUE(index.Take(two, "a", 4, UploadIndex::Time(hours(2))).ok());
  UploadIndex::Entry& other = index.Add(EntryOf("u", "3", hours(1)));
  EXPECT_FALSE(index.Take(other, "a", 8, UploadIndex::Time(hours(2))).ok());  // 31 in all
  index.GiveBack(two, "a", 4);
  EXPECT_TRUE(index.Take(other, "a", 8, UploadIndex::Time(hours(2))).ok());
  index.Erase("1");
  EXPECT_EQ(index.Find("1"), nullptr);
  EXPECT_TRUE(index.CheckNew("t", {"4", {{"a", 16, {}}}}).ok());  // 3 + 16 of 20, 14 + 16 of 30
  EXPECT_FALSE(index.CheckNew("t", {"4", {{"a", 18, {}}}}).ok());
}

TEST(UploadIndexTest, IdleAreThoseThatNobodyWorksOn) {
  UploadIndex index({});
  index.Add(EntryOf("t", "old", hours(1)));
  index.Add(EntryOf("t", "busy", hours(1))).busy = true;
  UploadIndex::Entry& moved = index.Add(EntryOf("t", "moved", hours(1)));
  EXPECT_TRUE(index.Take(moved, "a", 1, UploadIndex::Time(hours(9))).ok());
  EXPECT_EQ(index.IdleSince(UploadIndex::Time(hours(5))), std::vector<std::string>{"old"});
}

TEST(UploadMetricsTest, CountsWhatEnded) {
  Metrics metrics;
  const UploadMetrics uploads(metrics);
  const auto error = [](absl::StatusCode code, Reason reason) {
    return MakeError(code, reason, "field", "", "text");
  };
  uploads.Ended(absl::OkStatus(), /*is_finish=*/false);
  uploads.Ended(absl::OkStatus(), /*is_finish=*/true);
  uploads.Ended(error(absl::StatusCode::kInvalidArgument, Reason::kDora), true);
  uploads.Ended(error(absl::StatusCode::kResourceExhausted, Reason::kQuota), false);
  uploads.Ended(error(absl::StatusCode::kResourceExhausted, Reason::kIoError), false);
  uploads.Ended(error(absl::StatusCode::kInternal, Reason::kIoError), false);
  uploads.Ended(error(absl::StatusCode::kUnavailable, Reason::kIoError), false);
  uploads.Ended(error(absl::StatusCode::kFailedPrecondition, Reason::kTruncated), true);
  const std::string text = metrics.Text();
  for (const auto& [result, count] : {std::pair("ok", 1), {"rejected", 2}, {"error", 3}}) {
    EXPECT_NE(text.find(absl::StrCat("rootstock_adapter_upload_total{result=\"", result, "\"} ",
                                     count, "\n")),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace rootstock
