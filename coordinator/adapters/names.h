// The registry's names in memory, as its tables have them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/adapters/adapter.h"
#include "coordinator/adapters/alias.h"

namespace rootstock {

// NOT_FOUND/unknown_model: the same words for what is unknown and what is another tenant's.
absl::Status UnknownModel(const std::string& name);

// One namespace a tenant: a name is an adapter's or an alias's. Not thread-safe: the registry's
// mutex guards it.
class Names {
 public:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  struct Version {
    Digest digest;
    AdapterState state = AdapterState::kStaged;
    int64_t registered_ms = 0;
    int64_t last_used_ms = 0;
    bool use_saved = true;          // last_used_ms is in the tables
    std::set<std::string> pins;     // groups; "": all of them
    std::set<std::string> aliases;  // that have it among their targets
  };
  using Versions = std::map<uint32_t, Version>;  // by number; never empty
  struct Alias {
    uint64_t revision = 0;
    std::vector<AliasTarget> targets;
    int64_t changed_ms = 0;
    uint64_t rolled_back_to = 0;
  };
  struct Found {
    uint32_t number;
    Version* version;
  };

  const std::map<Key, Versions>& adapters() const { return adapters_; }
  std::map<Key, Versions>& adapters() { return adapters_; }
  const std::map<Key, Alias>& aliases() const { return aliases_; }

  // Number 0: the newest active one, or the newest if none is active. NOT_FOUND; INVALID_ARGUMENT
  // for an alias, which is no adapter.
  absl::StatusOr<Found> Find(const Key& key, uint32_t number);
  uint32_t Newest(const Key& key) const;  // what number 0 finds of an adapter that is there
  // What `model` in a request means: NAME, NAME@N or ALIAS. NOT_FOUND.
  struct Bound {
    std::string name;
    Found found;
  };
  absl::StatusOr<Bound> Bind(const std::string& tenant, const std::string& model,
                             const std::string& request_id);

  Version& Add(const Key& key, uint32_t number) { return adapters_[key][number]; }
  void Remove(const Key& key, uint32_t number);
  // With its targets' back references. No targets: it is removed.
  void Put(const Key& key, Alias alias);
  // Each target is there and active; a version 0 becomes the newest active one. NOT_FOUND,
  // FAILED_PRECONDITION.
  absl::Status BindTargets(const std::string& tenant, std::vector<AliasTarget>& targets);

 private:
  std::map<Key, Versions> adapters_;
  std::map<Key, Alias> aliases_;
};

}  // namespace rootstock
