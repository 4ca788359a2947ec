// How much content each tenant keeps.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/digest.h"

namespace rootstock {

// Of the contents that a tenant's versions are, each counted once. Not thread-safe: the registry's
// mutex guards it.
class TenantBytes {
 public:
  // One version more, or less, of a content of `bytes`.
  void Add(const std::string& tenant, const Digest& digest, uint64_t bytes) {
    Tenant& t = tenants_[tenant];
    if (t.versions[digest]++ == 0) t.bytes += bytes;
  }
  void Remove(const std::string& tenant, const Digest& digest, uint64_t bytes) {
    Tenant& t = tenants_[tenant];
    if (--t.versions[digest] > 0) return;
    t.versions.erase(digest);
    t.bytes -= bytes;
    if (t.versions.empty()) tenants_.erase(tenant);
  }
  // Beside this content.
  uint64_t Others(const std::string& tenant, const Digest& digest, uint64_t bytes) const {
    const auto it = tenants_.find(tenant);
    if (it == tenants_.end()) return 0;
    return it->second.bytes - (it->second.versions.contains(digest) ? bytes : 0);
  }

 private:
  struct Tenant {
    std::map<Digest, int> versions;
    uint64_t bytes = 0;
  };
  std::map<std::string, Tenant> tenants_;
};

}  // namespace rootstock
