// What became of uploads that were finished.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

namespace rootstock {

// A client whose answer was lost asks again, and the upload is gone by then: of the last thousand
// it hears the same again. Gone with the process: a client that finds nothing sends the files
// again. *Thread-safe.*
class FinishedUploads {
 public:
  void Add(const std::string& tenant, const std::string& id, const std::string& name,
           uint32_t version) {
    const std::lock_guard lock(mutex_);
    const Key key{tenant, id, name};
    if (versions_.insert_or_assign(key, version).second) by_age_.push_back(key);
    if (by_age_.size() <= kMaxKept) return;
    versions_.erase(by_age_.front());
    by_age_.pop_front();
  }
  // The version that `name` got.
  std::optional<uint32_t> Find(const std::string& tenant, const std::string& id,
                               const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto it = versions_.find({tenant, id, name});
    return it == versions_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // tenant, upload, name
  static constexpr size_t kMaxKept = 1000;

  mutable std::mutex mutex_;
  std::map<Key, uint32_t> versions_;
  std::deque<Key> by_age_;  // each of versions_ once
};

}  // namespace rootstock
