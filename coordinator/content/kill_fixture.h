// For tests of what kill -9 leaves on a disk.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <random>

namespace rootstock {

// Runs `work(end)` in a child that writes a byte to the pipe `end` for each change that was
// acknowledged, and kills it some moment after `enough` of them. How many there were.
template <typename Work>
size_t KillWhileItWorks(const Work& work, size_t enough, std::mt19937& random) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child < 0) {  // kill(-1) would end everybody
    ADD_FAILURE() << "fork failed";
    close(ends[0]);
    close(ends[1]);
    return 0;
  }
  if (child == 0) {
    close(ends[0]);
    work(ends[1]);
    _exit(1);
  }
  close(ends[1]);
  size_t count = 0;
  char byte = 0;
  while (count < enough && read(ends[0], &byte, 1) == 1) ++count;
  // Anywhere in the next change: it takes some tens of microseconds to milliseconds.
  for (uint32_t spin = random() % 200'000; spin > 0; --spin) asm volatile("");
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  while (read(ends[0], &byte, 1) == 1) ++count;
  close(ends[0]);
  return count;
}

}  // namespace rootstock
