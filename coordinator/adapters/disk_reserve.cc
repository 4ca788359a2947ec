#include "coordinator/adapters/disk_reserve.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "common/base/log.h"

namespace rootstock {
namespace {

constexpr off_t kBytes = 256 << 10;
constexpr off_t kPiece = 4096;  // what a nearly full disk may still have

}  // namespace

void DiskReserve::Take() const {
  const int fd = open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  int error = fd < 0 ? errno : 0;
  for (off_t at = 0; error == 0 && at < kBytes; at += kPiece) {
    error = posix_fallocate(fd, at, kPiece);
  }
  if (fd >= 0) close(fd);
  if (error == 0) return;
  LogWarning("data=", file_.parent_path().string(),
             ": no room is left to its next start: ", std::strerror(error));
}

void DiskReserve::GiveUp() const {
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

}  // namespace rootstock
