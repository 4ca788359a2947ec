// A disk for SQLite that tests make fail, and whose writes they can replay up to any byte.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

struct sqlite3_vfs;

namespace rootstock {

// SQLite's default file system while it lives, over the real one. One a process. Not thread-safe.
class FaultyVfs {
 public:
  struct Event {
    enum Kind { kWrite, kTruncate, kSync } kind = kWrite;
    std::string file;    // name without its directory
    int64_t offset = 0;  // of a write; the length of a truncation
    std::string bytes;
  };

  FaultyVfs();
  ~FaultyVfs();
  FaultyVfs(const FaultyVfs&) = delete;
  FaultyVfs& operator=(const FaultyVfs&) = delete;

  // Asked before each write, truncation and sync: a SQLite error code, or 0 to go on.
  std::function<int(Event::Kind)> fail;
  // What was done, in order, while it is set.
  std::vector<Event>* record = nullptr;

 private:
  friend struct FaultyVfsFile;
  sqlite3_vfs* real_;
  sqlite3_vfs* shim_;
};

// The files of a directory: name to content.
using FileImages = std::map<std::string, std::string>;
void Apply(const FaultyVfs::Event& event, FileImages& files);

}  // namespace rootstock
