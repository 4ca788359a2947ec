// Adapters that a store knows and the registry does not yet.
#pragma once

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
// STORE/TENANT/NAME for others. What was not there is not looked for again for a while.
// *Thread-safe.*
class LazyAdapters {
 public:
  // Borrows the registry, whose sources allow the store. `clock`: any monotonic one.
  LazyAdapters(Registry* registry, StoreUri store, std::function<absl::Time()> clock);

  // Whether a request for `model` should wait for Fetch; never blocks. False for names that are
  // registered, can be no adapter's, or were not there a moment ago.
  bool MayHold(const std::string& model, const std::string& tenant);
  // NOT_FOUND when the store has no such adapter; else as Registry::Register. Blocks.
  absl::Status Fetch(const std::string& model, const std::string& tenant);

 private:
  using Key = std::pair<std::string, std::string>;  // tenant, name
  std::string UriOf(const Key& key) const;
  void Remember(const Key& key);

  Registry* const registry_;
  const std::string store_;
  const std::function<absl::Time()> clock_;
  std::mutex mutex_;
  std::map<Key, absl::Time> missing_;  // until when nobody looks
};

}  // namespace rootstock
