// Which uploads there are and what they take, without a look at the disk.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/content/uploads/upload.h"

namespace rootstock {

// Every call takes about the same time however many there are. *One thread at a time.*
class UploadIndex {
 public:
  using Time = std::filesystem::file_time_type;
  struct Entry {
    std::string tenant;
    UploadState state;
    Time used;           // when its last piece came
    bool busy = false;   // somebody works on it
    bool there = false;  // its directory is complete
  };

  explicit UploadIndex(const UploadLimits& limits) : limits_(limits) {}

  // Null when there is none. Valid until it is erased.
  Entry* Find(const std::string& id);
  const Entry* Find(const std::string& id) const;
  // RESOURCE_EXHAUSTED / quota: for one more upload, of files that are as large as announced.
  absl::Status CheckNew(const std::string& tenant, const UploadState& state) const;
  Entry& Add(Entry entry);
  void Erase(const std::string& id);
  // `bytes` of a file are to come. RESOURCE_EXHAUSTED / quota.
  absl::Status Take(Entry& entry, const std::string& file, uint64_t bytes, Time now);
  // They have not come, or are gone.
  void GiveBack(Entry& entry, const std::string& file, uint64_t bytes);
  // Those that nobody works on and no piece of which came since.
  std::vector<std::string> IdleSince(Time time) const;

 private:
  struct Sum {
    size_t uploads = 0;
    uint64_t bytes = 0;
  };
  absl::Status CheckBytes(const std::string& tenant, uint64_t more) const;
  Sum SumOf(const std::string& tenant) const;

  const UploadLimits limits_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::pair<Time, std::string>> by_use_;
  std::unordered_map<std::string, Sum> tenants_;
  uint64_t bytes_ = 0;
};

}  // namespace rootstock
