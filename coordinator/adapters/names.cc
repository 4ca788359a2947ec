#include "coordinator/adapters/names.h"

#include "common/base/adapter_ref.h"
#include "common/base/status.h"

namespace rootstock {

absl::Status UnknownModel(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kUnknownModel, "model", name,
                   "no model or adapter of this name");
}

absl::StatusOr<Names::Found> Names::Find(const Key& key, uint32_t number) {
  const auto it = adapters_.find(key);
  if (it == adapters_.end()) {
    if (!aliases_.contains(key)) return UnknownModel(AdapterRef{key.second, number}.Text());
    return InvalidField(Reason::kInvalidArgument, "name", key.second,
                        "is an alias; name an adapter");
  }
  Versions& versions = it->second;
  if (number > 0) {
    const auto version = versions.find(number);
    if (version == versions.end()) return UnknownModel(AdapterRef{key.second, number}.Text());
    return Found{number, &version->second};
  }
  const uint32_t newest = Newest(key);
  return Found{newest, &versions.at(newest)};
}

uint32_t Names::Newest(const Key& key) const {
  const Versions& versions = adapters_.at(key);
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (version->second.state == AdapterState::kActive) return version->first;
  }
  return versions.rbegin()->first;
}

absl::StatusOr<Names::Bound> Names::Bind(const std::string& tenant, const std::string& model,
                                         const std::string& request_id) {
  const auto ref = ParseAdapterRef(model);
  if (!ref) return UnknownModel(model);
  if (ref->version == 0) {
    if (const auto it = aliases_.find({tenant, model}); it != aliases_.end()) {
      const Alias& alias = it->second;
      const AliasTarget& target =
          alias.targets[ChooseAliasTarget(model, alias.revision, alias.targets, request_id)];
      // It is there: what an alias names can't be unregistered.
      Version& version = adapters_.at({tenant, target.name}).at(target.version);
      return Bound{target.name, {target.version, &version}};
    }
  }
  const auto found = Find({tenant, ref->name}, ref->version);
  if (!found.ok()) return UnknownModel(model);
  return Bound{ref->name, *found};
}

void Names::Remove(const Key& key, uint32_t number) {
  const auto it = adapters_.find(key);
  it->second.erase(number);
  if (it->second.empty()) adapters_.erase(it);
}

void Names::Put(const Key& key, Alias alias) {
  const auto version_of = [&](const AliasTarget& target) -> Version& {
    return adapters_.at({key.first, target.name}).at(target.version);
  };
  if (const auto old = aliases_.find(key); old != aliases_.end()) {
    for (const AliasTarget& target : old->second.targets) {
      version_of(target).aliases.erase(key.second);
    }
  }
  for (const AliasTarget& target : alias.targets) version_of(target).aliases.insert(key.second);
  if (alias.targets.empty()) {
    aliases_.erase(key);
  } else {
    aliases_[key] = std::move(alias);
  }
}

absl::Status Names::BindTargets(const std::string& tenant, std::vector<AliasTarget>& targets) {
  for (AliasTarget& target : targets) {
    ASSIGN_OR_RETURN(const Found found, Find({tenant, target.name}, target.version));
    target.version = found.number;
    if (found.version->state == AdapterState::kActive) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "targets",
                     AdapterRef{target.name, target.version}.Text(),
                     "its stored content is missing or cut; register it again");
  }
  return absl::OkStatus();
}

}  // namespace rootstock
