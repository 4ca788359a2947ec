#include "coordinator/ctl/output.h"

#include <fcntl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace rootstock {
namespace {

// In a process whose three standard streams were closed: 0 when none of them is used again.
int OpenedWithoutStreams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) close(fd);
  HoldStandardStreams();
  const bool kept = open("/dev/null", O_RDWR) > STDERR_FILENO;
  char byte = 0;
  const bool useless = read(STDIN_FILENO, &byte, 1) < 0 && write(STDOUT_FILENO, &byte, 1) < 0 &&
                       write(STDERR_FILENO, &byte, 1) < 0;
  return kept && useless ? 0 : 1;
}

TEST(OutputDeathTest, ClosedStreamsAreNobodyElses) {
  EXPECT_EXIT(_exit(OpenedWithoutStreams()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rootstock
