#include "common/objects/sync_log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>

namespace {

struct Log {
  std::mutex mutex;
  std::optional<std::vector<std::string>> paths;  // while a SyncLog lives
};

Log& TheLog() {
  static Log log;
  return log;
}

}  // namespace

// Stands before the C library's at link time.
extern "C" int fsync(int fd) {
  {
    Log& log = TheLog();
    const std::lock_guard lock(log.mutex);
    std::error_code ignored;
    if (log.paths) {
      log.paths->push_back(std::filesystem::read_symlink(
          std::filesystem::path("/proc/self/fd") / std::to_string(fd), ignored));
    }
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace rootstock {

SyncLog::SyncLog() {
  const std::lock_guard lock(TheLog().mutex);
  TheLog().paths.emplace();
}

SyncLog::~SyncLog() {
  const std::lock_guard lock(TheLog().mutex);
  TheLog().paths.reset();
}

std::vector<std::string> SyncLog::paths() const {
  const std::lock_guard lock(TheLog().mutex);
  return *TheLog().paths;
}

bool SyncLog::Has(const std::string& path) const {
  const std::vector<std::string> all = paths();
  return std::find(all.begin(), all.end(), path) != all.end();
}

}  // namespace rootstock
