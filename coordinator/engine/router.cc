#include "coordinator/engine/router.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace rootstock {
namespace {

// A load costs about as much as this many requests in line.
constexpr uint32_t kColdPenalty = 8;
constexpr uint32_t kMinLine = 64;

}  // namespace

int Place(const std::vector<PlacementView>& groups) {
  int best = -1;
  uint32_t best_cost = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const PlacementView& g = groups[i];
    const uint32_t line = g.slow ? 0 : g.has_adapter ? g.hot_line : g.cold_line;
    if (!g.ready || line >= g.line_bound) continue;
    const uint32_t cost = g.outstanding + (g.has_adapter ? 0 : kColdPenalty);
    if (best >= 0 && cost >= best_cost) continue;
    best = static_cast<int>(i);
    best_cost = cost;
  }
  return best;
}

Router::Router(std::shared_ptr<TaskQueue> queue, Clock clock, CloseFn close,
               std::function<AdapterHandle(const Digest&)> find_digest,
               std::function<bool(const Digest&)> has_name)
    : queue_(std::move(queue)),
      clock_(std::move(clock)),
      close_(std::move(close)),
      find_digest_(std::move(find_digest)),
      has_name_(std::move(has_name)) {}

Router::~Router() {
  queue_->Stop();
  for (const auto& [digest, unload] : unloads_) {
    for (const UnloadDone& done : unload.done) done(unload.freed);
  }
}

void Router::Submit(RequestPtr request) {
  queue_->Post([this, r = std::move(request)]() mutable { OnSubmit(std::move(r)); });
}

std::function<void()> Router::StopSignal(RequestNumber request) {
  return [this, queue = queue_, request] {
    queue->Post([this, request] {
      const auto it = requests_.find(request.value);
      if (it == requests_.end() || it->second.attach == 0) return;  // heard when it is placed
      groups_.at(it->second.attach).engine->Poke(request);
    });
  };
}

void Router::GroupUp(uint64_t attach, std::shared_ptr<GroupEngine> engine, uint32_t max_num_seqs) {
  queue_->Post([this, attach, e = std::move(engine), max_num_seqs]() mutable {
    Group& group = groups_[attach];
    group.name = e->Snapshot().info.name;
    for (const ResidentAdapter& a : e->Snapshot().adapters) group.residents.insert(a.digest);
    group.engine = std::move(e);
    group.line_bound = std::max(kMinLine, max_num_seqs);
    TellPins(group);
    if (const auto left = unload_at_attach_.extract(group.name); !left.empty()) {
      for (const Digest& digest : left.mapped()) group.engine->Unload(digest, nullptr);
    }
    PlaceAll();
  });
}

void Router::DrainGroup(uint64_t attach) {
  queue_->Post([this, attach] {
    const auto it = groups_.find(attach);
    if (it == groups_.end()) return;
    it->second.draining = true;
    it->second.engine->Drain();
  });
}

void Router::Admitted(uint64_t attach, RequestNumber request) {
  queue_->Post([this, attach, request] {
    const auto it = requests_.find(request.value);
    if (it == requests_.end() || it->second.attach != attach) return;
    LeaveLine(it->second);
    PlaceAll();
  });
}

void Router::Ended(uint64_t attach, RequestNumber request) {
  queue_->Post([this, attach, request] {
    const auto it = requests_.find(request.value);
    if (it == requests_.end() || it->second.attach != attach) return;
    LeaveLine(it->second);
    --groups_.at(attach).outstanding;
    ForgetDeadline(*it->second.request);
    const RequestPtr ended = std::move(it->second.request);
    requests_.erase(it);
    RequestEnded(*ended);
    PlaceAll();
  });
}

void Router::Returned(uint64_t attach, std::vector<RequestPtr> requests) {
  queue_->Post([this, attach, returned = std::move(requests)] {
    for (const RequestPtr& request : returned) {
      const auto it = requests_.find(request->number.value);
      if (it == requests_.end() || it->second.attach != attach) continue;
      // The group is lost or drains: no more for it.
      groups_.at(attach).draining = true;
      TakeBack(it->second);
    }
    PlaceAll();
  });
}

void Router::TakeBack(Known& known) {
  LeaveLine(known);
  if (const auto group = groups_.find(known.attach); group != groups_.end()) {
    --group->second.outstanding;
  }
  known.attach = 0;
  const LiveRequest& request = *known.request;
  waiting_.insert(request.number.value);
  if (request.abort != AbortCause::kNone) CloseHere(request.number, AbortStatus(request));
}

void Router::ResidencyChanged(uint64_t attach, const Digest& digest, bool resident) {
  queue_->Post([this, attach, digest, resident] {
    const auto it = groups_.find(attach);
    if (it == groups_.end()) return;
    it->second.slow.erase(digest);
    if (resident) {
      it->second.residents.insert(digest);
    } else {
      it->second.residents.erase(digest);
    }
    PlaceAll();
  });
}

void Router::Gone(uint64_t attach, std::function<void()> released) {
  queue_->Post([this, attach, released = std::move(released)] {
    const std::string name = groups_[attach].name;
    groups_.erase(attach);  // may join its thread, which has nothing left to say
    released();
    for (auto it = unloads_.begin(); it != unloads_.end();) {
      const auto unload = it++;
      if (unload->second.groups.erase(attach) == 0) continue;
      unload_at_attach_[name].insert(unload->first);
      if (unload->second.groups.empty()) FinishUnload(unload);
    }
    // What was on its way to the group when it was lost.
    std::vector<uint64_t> numbers;
    for (const auto& [number, known] : requests_) {
      if (known.attach == attach) numbers.push_back(number);
    }
    for (const uint64_t number : numbers) {
      requests_.at(number).line = Line::kNone;
      TakeBack(requests_.at(number));
    }
    PlaceAll();
  });
}

void Router::Forget(const std::string& group) {
  queue_->Post([this, group] { unload_at_attach_.erase(group); });
}

void Router::OnSubmit(RequestPtr request) {
  const RequestNumber number = request->number;
  if (request->resolved.adapter) EndRetirements(request->resolved.adapter->digest);
  if (request->deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(request->deadline, number.value);
    ArmDeadline();
  }
  Known& known = requests_[number.value];
  known.request = std::move(request);
  waiting_.insert(number.value);
  if (drained_out_) {
    Abort(number, AbortCause::kDraining, clock_());
  } else if (waiting_.size() == 1) {
    PlaceOne(known);
  } else {
    PlaceAll();
  }
}

void Router::LeaveLine(Known& known) {
  if (known.line == Line::kNone) return;
  Group& group = groups_.at(known.attach);
  --(known.line == Line::kHot ? group.hot_line : group.cold_line);
  known.line = Line::kNone;
}

// Oldest first; a request that no group has room for is passed over, so that those waiting for
// cold adapters don't stop the others.
void Router::PlaceAll() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const uint64_t number = *it++;
    const bool any = std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
      const Group& g = entry.second;
      return !g.draining && std::min(g.hot_line, g.cold_line) < g.line_bound;
    });
    if (!any) return;
    PlaceOne(requests_.at(number));
  }
}

bool Router::PlaceOne(Known& known) {
  const AdapterHandle& adapter = known.request->resolved.adapter;
  if (adapter && HeldBack(*known.request)) return false;
  std::vector<PlacementView> views;
  std::vector<uint64_t> attaches;
  for (const auto& [attach, group] : groups_) {
    attaches.push_back(attach);
    views.push_back({.ready = !group.draining,
                     .has_adapter = !adapter || group.residents.contains(adapter->digest),
                     .slow = adapter && group.slow.contains(adapter->digest),
                     .hot_line = group.hot_line,
                     .cold_line = group.cold_line,
                     .outstanding = group.outstanding,
                     .line_bound = group.line_bound});
  }
  const int chosen = Place(views);
  if (chosen < 0) return false;
  Group& group = groups_.at(attaches[static_cast<size_t>(chosen)]);
  known.attach = attaches[static_cast<size_t>(chosen)];
  const PlacementView& view = views[static_cast<size_t>(chosen)];
  known.line = view.slow ? Line::kNone : view.has_adapter ? Line::kHot : Line::kCold;
  if (known.line != Line::kNone) {
    ++(known.line == Line::kHot ? group.hot_line : group.cold_line);
  }
  ++group.outstanding;
  waiting_.erase(known.request->number.value);
  group.engine->Submit(known.request);
  return true;
}

}  // namespace rootstock
