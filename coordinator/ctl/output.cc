#include "coordinator/ctl/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/status.h"

namespace rootstock {

void HoldStandardStreams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free descriptor is this one. Open the wrong way round, each use of it fails.
    const int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (got >= 0 && got != fd) close(got);
  }
}

bool OutputLost() { return std::ferror(stdout) != 0; }

absl::Status FinishOutput() {
  const bool lost_before = OutputLost();
  errno = 0;
  const bool lost = std::fflush(stdout) != 0;
  if (!lost && !lost_before) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "stdout", "",
                   errno != 0 ? std::strerror(errno) : "could not be written");
}

}  // namespace rootstock
