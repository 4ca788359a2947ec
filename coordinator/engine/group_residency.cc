// What a group's requests and its adapters have to do with each other: fit, waiting, loads.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/engine/group_engine.h"

namespace rootstock {

namespace {

constexpr size_t kMostNamelessDrops = 16;

AdapterLookup LookupOf(std::optional<Tier> tier) {
  return tier == Tier::kDevice ? AdapterLookup::kDeviceHit
         : tier == Tier::kHost ? AdapterLookup::kHostHit
                               : AdapterLookup::kDiskHit;
}

}  // namespace

// Takes over what the group still holds; what is unknown or laid out otherwise is dropped.
absl::Status GroupEngine::AdoptResidents() {
  for (const ResidentAdapter& found : config_.report.adapters) {
    if (!pages_.Adopt(found.pages)) {
      return InvalidField(Reason::kGroupMismatch, "pages", found.digest.Short(),
                          "the group reports pages for it that do not exist or are taken");
    }
  }
  adapters_.Report(config_.report.cached);
  for (const ResidentAdapter& found : config_.report.adapters) {
    const std::optional<AdapterFootprint> footprint = FootprintOf(found);
    adapters_.Adopt(found, footprint.value_or(AdapterFootprint{
                               found.layout_id, static_cast<uint32_t>(found.pages.size())}));
    const bool held = config_.find_digest(found.digest) != nullptr;
    if (!held || !footprint) adapters_.Discard(found.digest, /*all_tiers=*/!held);
    NoteIfNameless(found.digest);
  }
  for (const CachedAdapter& found : config_.report.cached) NoteIfNameless(found.digest);
  DropNameless();
  return absl::OkStatus();
}

// Its last name may have gone while the group was away.
void GroupEngine::NoteIfNameless(const Digest& digest) {
  if (!config_.has_name(digest)) nameless_.insert(digest);
}

// A few at a time: the group carries out each between two steps. What a request still holds is kept
// for it, and looked at again at every completion.
void GroupEngine::DropNameless() {
  for (auto it = nameless_.begin();
       it != nameless_.end() && nameless_drops_ < kMostNamelessDrops;) {
    const Digest digest = *it;
    const bool named = config_.has_name(digest);
    if (!named && config_.find_digest(digest)) {
      ++it;
      continue;
    }
    it = nameless_.erase(it);
    if (named || !adapters_.NearestTier(digest)) continue;
    ++nameless_drops_;
    adapters_.Unload(digest, [this](const TierBytes&) { --nameless_drops_; });
  }
}

std::optional<AdapterFootprint> GroupEngine::FootprintOf(const ResidentAdapter& found) const {
  const AdapterHandle content = config_.find_digest(found.digest);
  if (!content) return std::nullopt;
  const auto ways = config_.ways(*content);
  if (!ways.ok()) return std::nullopt;
  for (AdapterFootprint way : ways->ways) {
    if (way.layout_id != found.layout_id || way.pages != found.pages.size()) continue;
    way.most_pages = MostPages(
        {.pages = way.pages, .most_pages = ChooseWay(*ways, usable(), usable()).most_pages});
    way.content_bytes = content->blob_bytes;
    return way;
  }
  return std::nullopt;
}

// Known while the adapter is about; chosen anew for one that is nowhere.
absl::StatusOr<AdapterFootprint> GroupEngine::FootprintOf(const AdapterContent& content) const {
  if (const auto known = adapters_.FootprintOf(content.digest)) return *known;
  ASSIGN_OR_RETURN(const AdapterWays ways, config_.ways(content));
  AdapterFootprint way = ChooseWay(ways, usable(), pages_.free_pages());
  way.content_bytes = content.blob_bytes;
  return way;
}

PoolFloors GroupEngine::FloorsOf(const GroupConfig& config) {
  const double usable = config.report.geometry.num_pages - 1;
  return {static_cast<uint32_t>(usable * config.pool.kv_floor),
          static_cast<uint32_t>(usable * config.pool.adapter_floor)};
}

// Refuses what can never fit here; cuts an open-ended answer to what does.
absl::Status GroupEngine::FitRequest(LiveRequest& request) const {
  ResolvedRequest& r = request.resolved;
  const uint32_t adapter = MostPages(request.footprint);
  const uint32_t page_tokens = config_.report.geometry.page_tokens;
  const uint32_t pinned = PinnedBeside(request);
  const absl::Status fits = CheckFits(r.max_positions(), page_tokens, adapter, usable(), pinned);
  if (fits.ok() || r.max_tokens_asked) return fits;
  RETURN_IF_ERROR(CheckFits(r.prompt_tokens(), page_tokens, adapter, usable(), pinned));
  uint32_t most = (usable() - pinned - adapter) * page_tokens + 1 - r.prompt_tokens();
  for (const Sequence& s : request.sequences) {
    if (!s.finished) most = std::max(most, static_cast<uint32_t>(s.outputs.size()) + 1);
  }
  if (most < r.min_tokens) return fits;
  r.max_tokens = std::min(r.max_tokens, most);
  return CheckFits(r.max_positions(), page_tokens, adapter, usable(), pinned);
}

// Where its adapter is as it comes, and whether both can ever fit.
absl::Status GroupEngine::Receive(LiveRequest& request) {
  if (!request.resolved.adapter) return FitRequest(request);
  const AdapterContent& content = *request.resolved.adapter;
  const auto footprint = FootprintOf(content);
  if (!footprint.ok()) {
    return Annotate(footprint.status(), absl::StrCat("adapter '", request.resolved.model, "'"));
  }
  request.footprint = *footprint;
  const std::optional<Tier> tier = adapters_.NearestTier(content.digest);
  request.heat = tier == Tier::kDevice ? AdapterHeat::kHot
                 : tier == Tier::kHost ? AdapterHeat::kWarm
                                       : AdapterHeat::kCold;
  // Whence one that is on no tier comes is known when it has come.
  request.looked_up = tier.has_value();
  if (tier) config_.metrics->Looked(LookupOf(tier));
  return FitRequest(request);
}

void GroupEngine::Park(Sequence& sequence) {
  ready_.erase(sequence.order());
  if (!parked_.emplace(sequence.order(), &sequence).second) return;
  LiveRequest& request = *sequence.request;
  if (request.parked++ == 0) request.parked_since = config_.clock();
}

void GroupEngine::Unpark(Sequence& sequence) {
  if (parked_.erase(sequence.order()) == 0) return;
  LiveRequest& request = *sequence.request;
  if (--request.parked == 0) request.load_wait += config_.clock() - request.parked_since;
}

// True when any waits no longer for its adapter.
bool GroupEngine::UnparkUsable() {
  bool any = false;
  for (const Order order : adapters_.TakeUsable()) {
    const auto it = parked_.find(order);
    if (it == parked_.end()) continue;
    Sequence& sequence = *it->second;
    Unpark(sequence);
    ready_[order] = &sequence;
    any = true;
  }
  return any;
}

Sequence* GroupEngine::WaitingAt(Order order) const {
  for (const auto* line : {&parked_, &ready_}) {
    if (const auto it = line->find(order); it != line->end()) return it->second;
  }
  return nullptr;
}

void GroupEngine::OnAdapterEvent(const GroupAdapters::Event& event) {
  using Kind = GroupAdapters::Event::Kind;
  switch (event.kind) {
    case Kind::kNothing:
      return;
    case Kind::kFetched:
      CountLookups(event);
      return;
    case Kind::kArrived:
      config_.metrics->Loaded(event.source, absl::OkStatus(), event.took);
      callbacks_.residency(event.digest, true);
      return;
    case Kind::kDelayed:
      for (const Order order : event.waiting) {
        if (const auto it = ready_.find(order); it != ready_.end()) Park(*it->second);
      }
      return;
    case Kind::kLeft:
      config_.metrics->Evicted(Tier::kDevice, event.evicted, 1);
      (event.evicted                    ? config_.metrics->adapter_pages_pressure
       : config_.has_name(event.digest) ? config_.metrics->adapter_pages_unload
                                        : config_.metrics->adapter_pages_retire)
          .Add(event.pages);
      callbacks_.residency(event.digest, false);
      return;
    case Kind::kFailed:
      config_.metrics->Loaded(event.source, event.why, event.took);
      CountLookups(event);
      OnLoadFailed(event);
      return;
  }
}

void GroupEngine::CountLookups(const GroupAdapters::Event& event) {
  for (const Order order : event.waiting) {
    Sequence* sequence = WaitingAt(order);
    if (sequence == nullptr || std::exchange(sequence->request->looked_up, true)) continue;
    config_.metrics->Looked(event.source == FetchSource::kObject ? AdapterLookup::kObjectFetch
                            : event.source == FetchSource::kHost ? AdapterLookup::kHostHit
                            : event.source == FetchSource::kDisk ? AdapterLookup::kDiskHit
                                                                 : AdapterLookup::kFetch);
  }
}

// The name was bound to content that we hold: where it can't be had, its code is ours and not that
// of the fetch, which would tell the client of an unknown model or of its own cancel.
absl::Status GroupEngine::LoadFailure(const std::string& model, const absl::Status& why) {
  const bool may_pass = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) ||
                        absl::IsCancelled(why) || absl::IsResourceExhausted(why);
  const bool lost = absl::IsNotFound(why) || absl::IsDataLoss(why);
  const auto detail = GetErrorDetail(why);
  return MakeError(may_pass ? absl::StatusCode::kUnavailable
                   : lost   ? absl::StatusCode::kDataLoss
                            : absl::StatusCode::kInternal,
                   detail ? detail->reason : Reason::kIoError, "adapter", model,
                   absl::StrCat("could not be loaded: ", std::string(why.message())));
}

// Only those that wait for it, or that followed its Load by layer, fail; the name stays usable and
// the next request tries again.
void GroupEngine::OnLoadFailed(const GroupAdapters::Event& event) {
  std::vector<RequestPtr> failed;
  const auto add = [&](const Sequence& s) {
    failed.push_back(requests_.at(s.request->number.value));
  };
  for (const Order order : event.waiting) {
    if (const Sequence* s = WaitingAt(order)) add(*s);
  }
  for (const Sequence* s : running_) {
    const AdapterHandle& adapter = s->request->resolved.adapter;
    if (adapter && adapter->digest == event.digest) add(*s);
  }
  for (const RequestPtr& request : failed) {  // a sibling may have closed it
    if (!request->closed) CloseRequest(*request, LoadFailure(request->resolved.model, event.why));
  }
}

}  // namespace rootstock
