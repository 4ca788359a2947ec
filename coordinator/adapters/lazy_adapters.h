// Adapters that a store knows and the registry does not yet.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/objects/object_store.h"
#include "coordinator/adapters/registry.h"

namespace rootstock {

// Registers a name at its first request out of STORE/NAME for the tenant "default", of
// STORE/TENANT/NAME for others. What was not there is not looked for again for ten seconds, what
// was refused is not fetched again for a minute; a store that fails is asked again at once.
// *Thread-safe.*
class LazyAdapters {
 public:
  using Done = std::function<void(const absl::Status&)>;
  // Runs a job on a thread that may block; false when too many wait.
  using Post = std::function<bool(std::function<void()>)>;

  // Borrows the registry, whose sources have the store as their own. `clock`: any monotonic one.
  LazyAdapters(Registry* registry, StoreUri store, std::function<absl::Time()> clock, Post post);

  // Whether a request for `model` should wait for Fetch; never blocks. False for names that are
  // registered, can be no adapter's, or were not there a moment ago.
  bool MayHold(const std::string& model, const std::string& tenant);
  // `done` runs once, here or on the job's thread: with OK, NOT_FOUND when the store has no such
  // adapter, else as Registry::Register; RESOURCE_EXHAUSTED / queue_full at once. However many
  // requests wait for a name, it takes one job. Names the waiting one for Forget.
  uint64_t Fetch(const std::string& model, const std::string& tenant, Done done);
  // `done` is not run any more, unless it has been or is about to be; the fetch goes on.
  void Forget(const std::string& model, const std::string& tenant, uint64_t waiting);

 private:
  using Key = std::pair<std::string, std::string>;  // tenant, name
  // What is known of names for a while; of the oldest nothing when there are too many.
  class Memory {
   public:
    explicit Memory(absl::Duration lasts) : lasts_(lasts) {}
    void Add(const Key& key, const absl::Status& status, absl::Time now);
    const absl::Status* Find(const Key& key, absl::Time now);  // null: nothing

   private:
    struct Known {
      absl::Time until;
      absl::Status status;
    };
    const absl::Duration lasts_;
    std::map<Key, Known> known_;
    std::deque<Key> by_age_;  // each of known_ once
  };
  std::string UriOf(const Key& key) const;
  absl::Status Register(const Key& key);
  void Finish(const Key& key, const absl::Status& status);

  Registry* const registry_;
  const std::string store_;
  const std::function<absl::Time()> clock_;
  const Post post_;
  std::mutex mutex_;
  std::map<Key, std::map<uint64_t, Done>> waiting_;  // there while its job is under way
  uint64_t next_ = 1;
  // Strangers can invent what is missing, not what is refused: neither pushes the other out.
  Memory missing_{absl::Seconds(10)};
  Memory refused_{absl::Minutes(1)};
};

}  // namespace rootstock
