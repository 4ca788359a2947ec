#include "worker/link/group_guard.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "common/base/log.h"

namespace rootstock {
namespace {

using namespace std::chrono_literals;

// A child that does nothing until it is killed, with this process at the latest.
pid_t Idle() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}

int EndOf(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(GroupGuard, TellsWhichPeerIsGone) {
  const pid_t first = Idle(), second = Idle();
  std::promise<std::string> lost;
  GroupGuard guard({{first, "tp_rank 0"}, {second, "tp_rank 2"}},
                   [&](const GroupGuard&, const std::string& why) { lost.set_value(why); });
  kill(second, SIGKILL);
  auto why = lost.get_future();
  ASSERT_EQ(why.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(why.get(), "tp_rank 2 is gone");
  EndOf(second);
  guard.KillPeers();
  EXPECT_EQ(EndOf(first), SIGKILL);
}

// As one does whose driver takes long to give its device back: its first thread has ended, others
// have not.
TEST(GroupGuard, TellsOfAPeerWhoseEndTakesLong) {
  const pid_t peer = fork();
  if (peer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::thread([] {
      for (;;) pause();
    }).detach();
    syscall(SYS_exit, 0);  // of this thread alone
  }
  std::promise<std::string> lost;
  GroupGuard guard(
      {{peer, "tp_rank 1"}},
      [&](const GroupGuard&, const std::string& why) { lost.set_value(why); }, 10ms);
  auto why = lost.get_future();
  ASSERT_EQ(why.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(why.get(), "tp_rank 1 is gone");
  guard.KillPeers();
  EndOf(peer);
}

// That a rank has no descriptor left says nothing about its peers.
TEST(GroupGuard, APeerThatCannotBeLookedAtIsNotGone) {
  const pid_t peer = Idle();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  {
    std::promise<std::string> lost;
    GroupGuard guard(
        {{peer, "tp_rank 1"}},
        [&](const GroupGuard&, const std::string& why) { lost.set_value(why); }, 10ms);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(lost.get_future().wait_for(200ms), std::future_status::timeout);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  kill(peer, SIGKILL);
  EndOf(peer);
}

TEST(GroupGuard, KillsPeersThatStandStill) {
  const pid_t peer = Idle();
  GroupGuard guard({{peer, "tp_rank 1"}}, [](const GroupGuard&, const std::string&) {});
  kill(peer, SIGSTOP);
  guard.KillPeers();
  EXPECT_EQ(EndOf(peer), SIGKILL);
}

// A peer that waits for its parent's word, stopped or not.
TEST(GroupGuard, TellsWhichPeerStaysStopped) {
  const pid_t first = Idle(), second = Idle();
  std::promise<std::string> lost;
  GroupGuard guard(
      {{first, "tp_rank 0"}, {second, "tp_rank 2"}},
      [&](const GroupGuard&, const std::string& why) { lost.set_value(why); }, 10ms);
  auto why = lost.get_future();
  kill(second, SIGSTOP);
  ASSERT_EQ(why.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(why.get(), "tp_rank 2 is stopped");
  guard.KillPeers();
  EXPECT_EQ(EndOf(first), SIGKILL);
  EXPECT_EQ(EndOf(second), SIGKILL);
}

TEST(GroupGuard, TellsOfAPeerThatItCannotWatch) {
  const pid_t gone = Idle();
  kill(gone, SIGKILL);
  EndOf(gone);
  InitLogging("test", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  {
    GroupGuard guard({{gone, "tp_rank 1"}}, [](const GroupGuard&, const std::string&) {});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("tp_rank 1 (process "), std::string::npos) << text;
  EXPECT_NE(text.find("is not watched: No such process"), std::string::npos) << text;
}

TEST(GroupGuard, SaysNothingOnceItIsGone) {
  const pid_t peer = Idle();
  bool told = false;
  {
    GroupGuard guard({{peer, "tp_rank 1"}},
                     [&](const GroupGuard&, const std::string&) { told = true; });
  }
  kill(peer, SIGKILL);
  EndOf(peer);
  EXPECT_FALSE(told);
}

TEST(GroupGuard, RanksOfAHostAreSiblings) {
  EXPECT_TRUE(IsSibling(getpid()));
  const pid_t child = Idle();
  EXPECT_FALSE(IsSibling(child));
  kill(child, SIGKILL);
  EndOf(child);
  EXPECT_FALSE(IsSibling(child));
}

}  // namespace
}  // namespace rootstock
