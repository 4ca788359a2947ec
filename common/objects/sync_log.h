// What a test's process has synced, in place of the C library's fsync.
#pragma once

#include <string>
#include <vector>

namespace rootstock {

// While it lives, the paths of files and directories that fsync was called for, in order, as they
// were called then. One at a time. *Thread-safe.*
class SyncLog {
 public:
  SyncLog();
  ~SyncLog();
  std::vector<std::string> paths() const;
  bool Has(const std::string& path) const;
};

}  // namespace rootstock
