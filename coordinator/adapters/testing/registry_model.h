// What a registry is to be, in the plainest containers: tests hold the real one against it.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/adapters/registry.h"

namespace rootstock {

struct RegistryOp {
  enum Kind { kRegister, kUnregister, kSetAlias, kRollback, kRemoveAlias, kPin, kUnpin } kind;
  std::string tenant, name;
  std::string text;  // content to register
  bool new_version = false;
  uint32_t version = 0;
  std::vector<AliasTarget> targets;
  uint64_t to = 0;
  std::string group;

  std::string Text() const;  // for failures
};

class RegistryModel {
 public:
  using Key = std::pair<std::string, std::string>;

  // An operation that makes sense more often than not.
  RegistryOp Draw(std::mt19937& random) const;
  // The code that the registry answers with; the model has changed when it is OK.
  absl::StatusCode Apply(const RegistryOp& op);
  // All there is to see of tenants, versions, aliases and pins, as text.
  std::string Show() const;
  // What NAME, NAME@N or ALIAS means: "NAME@N", or "" for what isn't there.
  std::string Resolve(const std::string& tenant, const std::string& model,
                      const std::string& request_id) const;
  std::set<std::string> Texts() const;  // of all contents

 private:
  struct Version {
    std::string text;
    std::set<std::string> pins;
  };
  using Targets = std::vector<AliasTarget>;

  const Targets* Current(const Key& key) const;  // null: no such alias
  bool InUse(const Key& key, uint32_t version) const;
  absl::StatusCode Find(const Key& key, uint32_t& version) const;
  absl::StatusCode Register(const RegistryOp& op);
  absl::StatusCode Unregister(const RegistryOp& op);
  absl::StatusCode SetAlias(const RegistryOp& op);
  absl::StatusCode Rollback(const RegistryOp& op);
  absl::StatusCode ChangePins(const RegistryOp& op);

  std::map<Key, std::map<uint32_t, Version>> versions_;
  std::map<Key, uint32_t> last_number_;
  std::map<Key, std::vector<Targets>> revisions_;  // by revision - 1; empty targets: removed
};

// Registers `op.text` itself as content.
absl::StatusCode ApplyTo(Registry& registry, const RegistryOp& op);
std::string ShowRegistry(const Registry& registry);
absl::StatusOr<LoadedAdapter> LoadedText(const std::string& text);

}  // namespace rootstock
