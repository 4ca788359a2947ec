#include "coordinator/content/removal_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"

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
  std::promise<void> asks;
  std::future<bool> forgotten = std::async(std::launch::async, [&] {
    asks.set_value();
    return queue.Forget(a);
  });
  asks.get_future().wait();
  EXPECT_EQ(forgotten.wait_for(milliseconds(50)), std::future_status::timeout);
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

// A pipe in stderr's place that takes nothing more until it is read.
class BlockedStderr {
 public:
  BlockedStderr() : saved_(dup(2)) {
    EXPECT_EQ(pipe2(ends_, O_NONBLOCK), 0);
    const std::string filling(4096, 'x');
    while (write(ends_[1], filling.data(), filling.size()) > 0) {
    }
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, 0), 0);
    dup2(ends_[1], 2);
    close(ends_[1]);
  }
  ~BlockedStderr() {
    dup2(saved_, 2);
    close(saved_);
    close(ends_[0]);
  }
  // What is in it; whoever is blocked goes on.
  std::string Read() const {
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(ends_[0], buffer, sizeof(buffer))) > 0;) {
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }

 private:
  const int saved_;
  int ends_[2];
};

TEST(RemovalQueueTest, FailuresAreToldOnceAndALogThatBlocksHoldsUpNobody) {
  InitLogging("test", LogLevel::kWarning);  // to stderr
  std::promise<void> began;
  bool first = true;
  const BlockedStderr blocked;
  std::string log;
  {
    RemovalQueue queue(
        [&](const Digest&) {
          if (std::exchange(first, false)) began.set_value();
          return absl::UnavailableError("the store is away");
        },
        std::chrono::hours(1));
    queue.Add(Sha256Of("a"));
    began.get_future().wait();
    std::future<void> added = std::async(std::launch::async, [&] {
      for (int i = 0; i < 2000; ++i) queue.Add(Sha256Of(std::to_string(i)));
    });
    EXPECT_EQ(added.wait_for(std::chrono::seconds(5)), std::future_status::ready);
    log = blocked.Read();
    added.wait();
    queue.Drain();
  }
  log += blocked.Read();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
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

// Between Add and the thread's waking up nobody else would wake it.
TEST(RemovalQueueTest, WhoDrainsDoesNotWaitForWhatIsForgotten) {
  RemovalQueue queue([](const Digest&) { return absl::OkStatus(); }, milliseconds(1));
  const Digest digest = Sha256Of("forgotten");
  for (int i = 0; i < 3000; ++i) {
    queue.Add(digest);
    auto drained = std::async(std::launch::async, [&] { queue.Drain(); });
    if (i % 2 == 0) std::this_thread::yield();
    queue.Forget(digest);
    const bool ended = drained.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    if (!ended) queue.Add(Sha256Of("wakes it"));
    ASSERT_TRUE(ended) << "after " << i;
  }
}

}  // namespace
}  // namespace rootstock
