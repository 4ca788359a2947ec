#include "coordinator/adapters/testing/registry_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/adapter_ref.h"
#include "common/base/digest.h"

namespace rootstock {
namespace {

using enum absl::StatusCode;

const std::vector<std::string> kTenants = {"t0", "t1"};
const std::vector<std::string> kNames = {"a", "b", "c", "d", "e"};
constexpr uint32_t kTexts = 6;

uint32_t Below(std::mt19937& random, uint32_t n) { return static_cast<uint32_t>(random() % n); }

}  // namespace

std::string RegistryOp::Text() const {
  static constexpr const char* kKinds[] = {"register", "unregister", "set",  "rollback",
                                           "remove",   "pin",        "unpin"};
  return absl::StrCat(kKinds[kind], " ", tenant, "/", name, "@", version, " text=", text,
                      " new=", new_version, " targets=", EncodeAliasTargets(targets), " to=", to,
                      " group=", group);
}

RegistryOp RegistryModel::Draw(std::mt19937& random) const {
  static constexpr RegistryOp::Kind kMix[] = {
      RegistryOp::kRegister,   RegistryOp::kRegister, RegistryOp::kRegister,
      RegistryOp::kUnregister, RegistryOp::kSetAlias, RegistryOp::kSetAlias,
      RegistryOp::kSetAlias,   RegistryOp::kRollback, RegistryOp::kRemoveAlias,
      RegistryOp::kPin,        RegistryOp::kUnpin};
  RegistryOp op{.kind = kMix[Below(random, std::size(kMix))]};
  op.tenant = kTenants[Below(random, 2)];
  op.name = kNames[Below(random, static_cast<uint32_t>(kNames.size()))];
  op.text = absl::StrCat("text ", Below(random, kTexts));
  op.new_version = Below(random, 3) > 0;
  op.group = Below(random, 2) == 0 ? "" : absl::StrCat("g", Below(random, 2));
  // Names' versions lie close to the last one.
  const auto version_of = [&](const std::string& name) -> uint32_t {
    const auto it = last_number_.find({op.tenant, name});
    const uint32_t last = it == last_number_.end() ? 1 : it->second;
    const uint32_t back = Below(random, 4);
    return Below(random, 4) == 0 ? 0 : last - std::min(back, last - 1);
  };
  op.version = version_of(op.name);
  for (uint32_t i = 0, n = 1 + Below(random, 3); i < n; ++i) {
    const std::string& name = kNames[Below(random, static_cast<uint32_t>(kNames.size()))];
    op.targets.push_back({name, version_of(name), 1 + Below(random, 9)});
  }
  if (const auto it = revisions_.find({op.tenant, op.name}); it != revisions_.end()) {
    if (Below(random, 2) == 0) op.to = 1 + Below(random, static_cast<uint32_t>(it->second.size()));
  }
  return op;
}

const RegistryModel::Targets* RegistryModel::Current(const Key& key) const {
  const auto it = revisions_.find(key);
  return it == revisions_.end() || it->second.back().empty() ? nullptr : &it->second.back();
}

bool RegistryModel::InUse(const Key& key, uint32_t version) const {
  for (const auto& [alias, revisions] : revisions_) {
    if (alias.first != key.first) continue;
    for (const AliasTarget& target : revisions.back()) {
      if (target.name == key.second && (version == 0 || target.version == version)) return true;
    }
  }
  return false;
}

absl::StatusCode RegistryModel::Find(const Key& key, uint32_t& version) const {
  const auto it = versions_.find(key);
  if (it == versions_.end()) return Current(key) ? kInvalidArgument : kNotFound;
  if (version == 0) version = it->second.rbegin()->first;
  return it->second.contains(version) ? kOk : kNotFound;
}

absl::StatusCode RegistryModel::Register(const RegistryOp& op) {
  const Key key{op.tenant, op.name};
  if (Current(key)) return kAlreadyExists;
  if (const auto it = versions_.find(key); it != versions_.end()) {
    if (it->second.rbegin()->second.text == op.text) return kOk;
    if (!op.new_version) return kAlreadyExists;
  }
  versions_[key][++last_number_[key]].text = op.text;
  return kOk;
}

absl::StatusCode RegistryModel::Unregister(const RegistryOp& op) {
  const Key key{op.tenant, op.name};
  uint32_t version = op.version;
  if (const absl::StatusCode code = Find(key, version); code != kOk) {
    const auto last = last_number_.find(key);
    const bool was_there = last != last_number_.end() && op.version <= last->second;
    return code == kNotFound && was_there ? kOk : code;
  }
  if (InUse(key, op.version)) return kFailedPrecondition;
  if (op.version > 0) versions_[key].erase(op.version);
  if (op.version == 0 || versions_[key].empty()) versions_.erase(key);
  return kOk;
}

absl::StatusCode RegistryModel::SetAlias(const RegistryOp& op) {
  const Key key{op.tenant, op.name};
  const auto twice = [](const Targets& targets) {
    std::set<std::pair<std::string, uint32_t>> seen;
    return std::any_of(targets.begin(), targets.end(), [&](const AliasTarget& t) {
      return !seen.emplace(t.name, t.version).second;
    });
  };
  if (twice(op.targets)) return kInvalidArgument;
  Targets targets = op.targets;
  for (AliasTarget& target : targets) {
    const absl::StatusCode code = Find({op.tenant, target.name}, target.version);
    if (code != kOk) return code;
  }
  if (versions_.contains(key)) return kAlreadyExists;
  if (twice(targets)) return kInvalidArgument;
  const Targets* current = Current(key);
  if (current == nullptr || *current != targets) revisions_[key].push_back(targets);
  return kOk;
}

absl::StatusCode RegistryModel::Rollback(const RegistryOp& op) {
  const Key key{op.tenant, op.name};
  const Targets* current = Current(key);
  if (current == nullptr) return kNotFound;
  std::vector<Targets>& revisions = revisions_[key];
  const size_t to = op.to > 0 ? op.to : revisions.size() - 1;
  if (to == 0 || to > revisions.size() || revisions[to - 1].empty()) return kFailedPrecondition;
  const Targets targets = revisions[to - 1];
  if (targets == *current) return kOk;
  for (AliasTarget target : targets) {
    if (Find({op.tenant, target.name}, target.version) != kOk) return kFailedPrecondition;
  }
  revisions.push_back(targets);
  return kOk;
}

absl::StatusCode RegistryModel::ChangePins(const RegistryOp& op) {
  const Key key{op.tenant, op.name};
  uint32_t version = op.version;
  if (const absl::StatusCode code = Find(key, version); code != kOk) return code;
  std::set<std::string>& pins = versions_[key][version].pins;
  if (op.kind == RegistryOp::kPin) {
    if (!pins.contains("")) pins.insert(op.group);
  } else if (op.group.empty()) {
    pins.clear();
  } else if (pins.contains("")) {
    return kFailedPrecondition;
  } else {
    pins.erase(op.group);
  }
  return kOk;
}

absl::StatusCode RegistryModel::Apply(const RegistryOp& op) {
  switch (op.kind) {
    case RegistryOp::kRegister:
      return Register(op);
    case RegistryOp::kUnregister:
      return Unregister(op);
    case RegistryOp::kSetAlias:
      return SetAlias(op);
    case RegistryOp::kRollback:
      return Rollback(op);
    case RegistryOp::kRemoveAlias:
      if (!revisions_.contains({op.tenant, op.name})) return kNotFound;
      if (Current({op.tenant, op.name}) == nullptr) return kOk;
      revisions_[{op.tenant, op.name}].push_back({});
      return kOk;
    case RegistryOp::kPin:
    case RegistryOp::kUnpin:
      return ChangePins(op);
  }
  return kInternal;
}

std::string RegistryModel::Show() const {
  std::string out;
  for (const std::string& tenant : kTenants) {
    for (const auto& [key, versions] : versions_) {
      if (key.first != tenant) continue;
      for (const auto& [number, version] : versions) {
        absl::StrAppend(&out, tenant, "/", key.second, "@", number, " ",
                        Sha256Of(version.text).Short(), " pins ", absl::StrJoin(version.pins, ","),
                        "\n");
      }
    }
    for (const auto& [key, revisions] : revisions_) {
      if (key.first != tenant || revisions.back().empty()) continue;
      absl::StrAppend(&out, tenant, "/", key.second, " revision ", revisions.size(), " ",
                      EncodeAliasTargets(revisions.back()), "\n");
    }
  }
  return out;
}

std::string RegistryModel::Resolve(const std::string& tenant, const std::string& model,
                                   const std::string& request_id) const {
  AdapterRef ref = *ParseAdapterRef(model);
  const Targets* alias = Current({tenant, model});
  if (alias != nullptr) {
    const size_t revision = revisions_.at({tenant, model}).size();
    const AliasTarget& target = (*alias)[ChooseAliasTarget(model, revision, *alias, request_id)];
    return AdapterRef{target.name, target.version}.Text();
  }
  return Find({tenant, ref.name}, ref.version) == kOk ? ref.Text() : "";
}

std::set<std::string> RegistryModel::Texts() const {
  std::set<std::string> out;
  for (const auto& [key, versions] : versions_) {
    for (const auto& [number, version] : versions) out.insert(version.text);
  }
  return out;
}

absl::StatusOr<LoadedAdapter> LoadedText(const std::string& text) {
  LoadedAdapter out;
  out.canonical = text;
  out.digest = Sha256Of(text);
  out.spec.modules = {{0, Module::kQ, 8, 0.1f}};
  out.receipt_json = "{}";
  return out;
}

absl::StatusCode ApplyTo(Registry& registry, const RegistryOp& op) {
  switch (op.kind) {
    case RegistryOp::kRegister:
      return registry
          .RegisterFrom(op.name, op.tenant, op.new_version, [&] { return LoadedText(op.text); })
          .status()
          .code();
    case RegistryOp::kUnregister:
      return registry.Unregister(op.name, op.tenant, op.version).status().code();
    case RegistryOp::kSetAlias:
      return registry.SetAlias(op.name, op.tenant, op.targets).status().code();
    case RegistryOp::kRollback:
      return registry.RollbackAlias(op.name, op.tenant, op.to).status().code();
    case RegistryOp::kRemoveAlias:
      return registry.RemoveAlias(op.name, op.tenant).code();
    case RegistryOp::kPin:
      return registry.Pin(op.name, op.tenant, op.version, op.group).status().code();
    case RegistryOp::kUnpin:
      return registry.Unpin(op.name, op.tenant, op.version, op.group).status().code();
  }
  return kInternal;
}

std::string ShowRegistry(const Registry& registry) {
  std::string out;
  for (const std::string& tenant : kTenants) {
    for (const AdapterEntry& entry : registry.List(tenant, {}, 1000)) {
      absl::StrAppend(&out, tenant, "/", entry.name, "@", entry.version, " ", entry.digest.Short(),
                      " pins ", absl::StrJoin(entry.pins, ","), "\n");
    }
    for (const AliasEntry& alias : registry.ListAliases(tenant, "", 1000)) {
      absl::StrAppend(&out, tenant, "/", alias.name, " revision ", alias.revision, " ",
                      EncodeAliasTargets(alias.targets), "\n");
    }
  }
  return out;
}

}  // namespace rootstock
