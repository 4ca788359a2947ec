// What follows when a Prefetch, a Load or a Drop has completed, and as time passes.
#include <utility>

#include "common/base/log.h"
#include "coordinator/engine/residency/group_adapters.h"

namespace rootstock {
namespace {

constexpr absl::Duration kRetryPin = absl::Seconds(10);

}  // namespace

GroupAdapters::Event GroupAdapters::Failed(Entry& entry, const absl::Status& why) {
  Event event;
  event.kind = Event::kFailed;
  event.digest = entry.digest;
  event.why = why;
  event.waiting.assign(entry.waiting.begin(), entry.waiting.end());
  event.source = entry.source;
  event.took = port_.clock() - entry.started;
  if (entry.pinned()) failed_pins_.push_back(entry.digest);
  return event;
}

GroupAdapters::Event GroupAdapters::FetchDone(Entry& entry, const Completion& completion) {
  const bool known = nodes_.Has(entry.digest, Tier::kDisk);
  entry.source = completion.source != FetchSource::kNone ? completion.source
                 : known                                 ? FetchSource::kDisk
                                                         : FetchSource::kCoordinator;
  if (!completion.outcome.ok()) {
    const Event event = Failed(entry, completion.outcome);
    window_.Left(entry);
    entry.state = Residency::kAbsent;
    Settle(entry);
    SendFetches();
    return event;
  }
  if (!known) nodes_.Apply({{entry.digest, Tier::kDisk, completion.bytes}, true});
  window_.Arrived(entry);
  BecomeFetched(entry);
  Event event;
  event.kind = Event::kFetched;
  event.digest = entry.digest;
  event.source = entry.source;
  event.waiting.assign(entry.waiting.begin(), entry.waiting.end());
  Settle(entry);
  return event;
}

GroupAdapters::Event GroupAdapters::LoadDone(Entry& entry, const absl::Status& outcome) {
  std::erase(followed_, entry.digest);
  const bool followed = entry.users > 0 || entry.last_step > completed_step_;
  // The nodes evicted what the Prefetch had brought, or there was none and what they have of it is
  // spoilt: that is nobody's fault.
  const bool lacked = absl::IsNotFound(outcome) || (entry.from_host && !outcome.ok());
  if (lacked && !followed && !std::exchange(entry.refetched, true)) {
    Event event;
    event.kind = Event::kDelayed;
    event.digest = entry.digest;
    event.waiting.assign(entry.waiting.begin(), entry.waiting.end());
    GiveBackPages(entry);
    entry.state = Residency::kAbsent;
    entry.unwanted() ? Settle(entry) : Queue(entry);
    return event;
  }
  if (!outcome.ok()) {
    const Event event = Failed(entry, outcome);
    if (followed) {
      StartLeaving(entry);  // Steps that followed it by layer read the pages
      return event;
    }
    GiveBackPages(entry);  // every rank has stopped writing
    entry.state = Residency::kAbsent;
    Settle(entry);
    return event;
  }
  Arrive(entry);
  if (entry.users == 0) BecomeIdle(entry);
  if (!entry.followed) BecomeUsable(entry);
  Event event;
  event.kind = Event::kArrived;
  event.digest = entry.digest;
  event.source = entry.source;
  event.took = port_.clock() - entry.started;
  Settle(entry);
  return event;
}

// The ranks may hold the pages of a Drop that one of them refused: nobody gets them, and nobody
// counts on them, until one for the device alone succeeds. Of the caches what an error leaves there
// is the nodes' to evict, but a fetch that is under way ends.
bool GroupAdapters::TriesDropAgain(Entry& entry, const absl::Status& outcome) {
  if (outcome.ok()) return false;
  LogWarning("adapter ", entry.digest.Short(), ": not dropped everywhere: ", outcome.message());
  if (entry.pages.empty() && !absl::IsFailedPrecondition(outcome)) return false;
  entry.drop_refused = true;
  pages_leaving_ -= static_cast<uint32_t>(entry.pages.size());
  refused_drops_.push_back(entry.digest);
  return true;
}

GroupAdapters::Event GroupAdapters::DropDone(Entry& entry, const Completion& completion) {
  entry.freed.host += completion.freed.host;
  entry.freed.disk += completion.freed.disk;
  if (TriesDropAgain(entry, completion.outcome)) return {};
  entry.drop_refused = false;
  Event event;
  event.kind = std::exchange(entry.arrived, false) ? Event::kLeft : Event::kNothing;
  event.evicted = entry.evicted;
  event.pages = static_cast<uint32_t>(entry.pages.size());
  event.digest = entry.digest;
  pages_leaving_ -= event.pages;
  GiveBackPages(entry);
  entry.freed.device += event.pages * port_.page_bytes;
  if (entry.doomed && !entry.drop_all) {  // since it was sent
    SendDrop(entry);
    return event;
  }
  const TierBytes freed = std::exchange(entry.freed, {});
  for (const UnloadDone& done : std::exchange(entry.unloads, {})) done(freed);
  entry.state = Residency::kAbsent;
  entry.drop_sent = false;
  entry.doomed = false;
  if (entry.unwanted()) {
    Settle(entry);
  } else {
    entry.doomed = !port_.has_name(entry.digest);
    Queue(entry);
  }
  return event;
}

GroupAdapters::Event GroupAdapters::Completed(const Completion& completion) {
  const auto it = pending_.find(completion.id);
  if (it == pending_.end()) return {};
  Entry& entry = *it->second;
  pending_.erase(it);
  if (entry.state == Residency::kLeaving) return DropDone(entry, completion);
  return entry.state == Residency::kFetching ? FetchDone(entry, completion)
                                             : LoadDone(entry, completion.outcome);
}

std::vector<Digest> GroupAdapters::Tick() {
  std::vector<Digest> out;
  for (Entry* entry : window_.FindSlow(port_.clock())) {
    out.push_back(entry->digest);
    Settle(*entry);
  }
  SendFetches();
  RetryPins();
  for (const Digest& digest : std::exchange(refused_drops_, {})) {
    Entry& entry = Find(digest);
    pages_leaving_ += static_cast<uint32_t>(entry.pages.size());
    SendDrop(entry);
  }
  return out;
}

void GroupAdapters::RetryPins() {
  for (const Digest& digest : std::exchange(failed_pins_, {})) {
    const auto it = entries_.find(digest);
    if (it == entries_.end() || !it->second->pinned()) continue;
    Entry& entry = *it->second;
    if (entry.state != Residency::kAbsent) continue;
    if (port_.clock() - entry.started < kRetryPin) {
      failed_pins_.push_back(digest);
    } else {
      Queue(entry);
    }
  }
}

void GroupAdapters::Report(const std::vector<CachedAdapter>& cached) {
  for (const CachedAdapter& adapter : cached) nodes_.Apply({adapter, true});
}

GroupAdapters::NodeEvictions GroupAdapters::Apply(const std::vector<TierChange>& changes) {
  NodeEvictions out;
  for (const TierChange& change : changes) {
    if (!nodes_.Apply(change) || change.present) continue;
    const auto entry = entries_.find(change.adapter.digest);
    const bool ordered = entry != entries_.end() && entry->second->state == Residency::kLeaving &&
                         entry->second->drop_all;
    if (change.adapter.tier == Tier::kHost) {
      ++(ordered ? out.retired_host : out.host);
    } else {
      ++(ordered ? out.retired_disk : out.disk);
    }
  }
  return out;
}

}  // namespace rootstock
