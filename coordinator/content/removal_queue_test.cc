#include "coordinator/content/removal_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace rootstock {
namespace {

using std::chrono::milliseconds;

TEST(RemovalQueueTest, NobodyWaitsForARemovalButWhoPutsTheContentBack) {
  std::promise<void> begun, go_on;
  std::vector<Digest> removed;
  RemovalQueue queue(
      [&](const Digest& digest) {
        if (removed.empty()) {
          begun.set_value();
          go_on.get_future().wait();
        }
        removed.push_back(digest);
        return absl::OkStatus();
      },
      milliseconds(1));
  const Digest a = Sha256Of("a"), b = Sha256Of("b"), c = Sha256Of("c");
  queue.Add(a);
  begun.get_future().wait();
  queue.Add(b);  // returns though `a` stands still
  queue.Add(c);
  EXPECT_TRUE(queue.Forget(b));
  EXPECT_FALSE(queue.Forget(b));
  std::future<bool> forgotten = std::async(std::launch::async, [&] { return queue.Forget(a); });
  EXPECT_EQ(forgotten.wait_for(milliseconds(10)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_TRUE(forgotten.get());
  queue.Drain();
  EXPECT_EQ(removed, (std::vector<Digest>{a, c}));
}

TEST(RemovalQueueTest, WhatFailedIsTriedAgain) {
  std::promise<void> done;
  int tries = 0;
  RemovalQueue queue(
      [&](const Digest&) -> absl::Status {
        if (++tries < 3) return absl::UnavailableError("away");
        done.set_value();
        return absl::OkStatus();
      },
      milliseconds(1));
  queue.Add(Sha256Of("a"));
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(RemovalQueueTest, WhatFailedCanBeForgottenAndHoldsUpNobody) {
  const Digest bad = Sha256Of("bad");
  std::vector<Digest> removed;
  RemovalQueue queue(
      [&](const Digest& digest) {
        removed.push_back(digest);
        return digest == bad ? absl::UnavailableError("away") : absl::OkStatus();
      },
      std::chrono::hours(1));
  queue.Add(bad);
  queue.Drain();
  queue.Add(Sha256Of("a"));
  queue.Drain();
  EXPECT_EQ(removed, (std::vector<Digest>{bad, Sha256Of("a")}));
  EXPECT_TRUE(queue.Forget(bad));
}

}  // namespace
}  // namespace rootstock
