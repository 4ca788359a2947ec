// The router's part in unloads, pins and slow fetches.
#include <utility>

#include "coordinator/engine/router.h"

namespace rootstock {

void Router::FetchIsSlow(uint64_t attach, const Digest& digest) {
  queue_->Post([this, attach, digest] {
    const auto it = groups_.find(attach);
    if (it == groups_.end() || it->second.residents.contains(digest)) return;
    it->second.slow.insert(digest);
    for (auto& [number, known] : requests_) {
      const AdapterHandle& adapter = known.request->resolved.adapter;
      if (known.attach == attach && adapter && adapter->digest == digest) LeaveLine(known);
    }
    PlaceAll();
  });
}

void Router::Unload(const Digest& digest, UnloadDone done) {
  queue_->Post([this, digest, d = std::move(done)]() mutable { OnUnload(digest, std::move(d)); });
}

void Router::OnUnload(const Digest& digest, UnloadDone done) {
  Unloading unload;
  unload.retired = !has_name_(digest);
  for (const auto& [number, known] : requests_) {
    const AdapterHandle& adapter = known.request->resolved.adapter;
    if (!adapter || adapter->digest != digest) continue;
    unload.before.insert(number);
  }
  if (done) unload.done.push_back(std::move(done));
  const auto it = unloads_.emplace(digest, std::move(unload));
  if (it->second.before.empty()) OrderUnload(it);
}

bool Router::HeldBack(const LiveRequest& request) const {
  const auto [begin, end] = unloads_.equal_range(request.resolved.adapter->digest);
  for (auto it = begin; it != end; ++it) {
    if (!it->second.before.contains(request.number.value)) return true;
  }
  return false;
}

void Router::RequestEnded(const LiveRequest& request) {
  if (!request.resolved.adapter) return;
  const auto [begin, end] = unloads_.equal_range(request.resolved.adapter->digest);
  std::vector<Unloads::iterator> ready;
  for (auto it = begin; it != end; ++it) {
    if (it->second.before.erase(request.number.value) == 0) continue;
    if (it->second.before.empty()) ready.push_back(it);
  }
  for (const auto it : ready) {
    // Registered again meanwhile, though nobody has asked for it yet: it stays.
    if (it->second.retired && has_name_(it->first)) {
      FinishUnload(it);
    } else {
      OrderUnload(it);
    }
  }
}

// Nothing that was there before it is left: now the groups.
void Router::OrderUnload(Unloads::iterator unload) {
  unload->second.ordered = true;
  for (const auto& [attach, group] : groups_) unload->second.groups.insert(attach);
  if (groups_.empty()) return FinishUnload(unload);
  for (const auto& [attach, group] : groups_) {
    group.engine->Unload(unload->first, [this, queue = queue_, attach = attach,
                                         digest = unload->first](const TierBytes& freed) {
      queue->Post([this, attach, digest, freed] { Unloaded(digest, attach, freed); });
    });
  }
}

// Unloads of one digest are answered in the order in which they were ordered.
void Router::Unloaded(const Digest& digest, uint64_t attach, const TierBytes& freed) {
  const auto [begin, end] = unloads_.equal_range(digest);
  for (auto it = begin; it != end; ++it) {
    Unloading& unload = it->second;
    if (!unload.ordered || unload.groups.erase(attach) == 0) continue;
    unload.freed.device += freed.device;
    unload.freed.host += freed.host;
    unload.freed.disk += freed.disk;
    if (unload.groups.empty()) FinishUnload(it);
    return;
  }
}

void Router::FinishUnload(Unloads::iterator unload) {
  auto node = unloads_.extract(unload);
  for (const UnloadDone& done : node.mapped().done) done(node.mapped().freed);
  PlaceAll();
}

// What waits to take away a content that was registered again does so no longer: its requests need
// not wait for those of before.
void Router::EndRetirements(const Digest& digest) {
  const auto [begin, end] = unloads_.equal_range(digest);
  std::vector<Unloads::iterator> over;
  for (auto it = begin; it != end; ++it) {
    if (it->second.retired && !it->second.ordered && has_name_(digest)) over.push_back(it);
  }
  for (const auto it : over) FinishUnload(it);
}

void Router::SetPins(std::vector<AdapterPin> pins) {
  queue_->Post([this, p = std::move(pins)]() mutable {
    pins_ = std::move(p);
    for (const auto& [attach, group] : groups_) TellPins(group);
  });
}

void Router::TellPins(const Group& group) const {
  std::vector<AdapterHandle> pins;
  for (const AdapterPin& pin : pins_) {
    if (!pin.group.empty() && pin.group != group.name) continue;
    if (AdapterHandle content = find_digest_(pin.digest)) pins.push_back(std::move(content));
  }
  group.engine->SetPins(std::move(pins));
}

}  // namespace rootstock
