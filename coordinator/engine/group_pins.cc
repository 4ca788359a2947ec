// Adapters that stay on a group.
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/engine/group_engine.h"

namespace rootstock {

// Pages that pins take from a request: its own adapter, if pinned, is counted as such.
uint32_t GroupEngine::PinnedBeside(const LiveRequest& request) const {
  uint32_t pages = wanted_pin_pages_;
  if (request.resolved.adapter) {
    const auto own = wanted_pins_.find(request.resolved.adapter->digest);
    if (own != wanted_pins_.end()) pages -= MostPages(own->second);
  }
  return pages;
}

absl::StatusOr<uint32_t> GroupEngine::PagesOf(const AdapterContent& content) const {
  ASSIGN_OR_RETURN(const AdapterWays ways, config_.ways(content));
  return MostPages(ChooseWay(ways, usable(), usable()));
}

absl::Status GroupEngine::CheckPins(const std::vector<AdapterHandle>& pins) const {
  uint64_t pages = 0;
  std::set<Digest> counted;  // content that several names pin takes its pages once
  for (const AdapterHandle& content : pins) {
    if (!counted.insert(content->digest).second) continue;
    const auto own = PagesOf(*content);
    if (!own.ok()) return Annotate(own.status(), absl::StrCat("group '", config_.info.name, "'"));
    pages += *own;
  }
  if (pages + floors_.kv + floors_.adapters <= usable()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kTooLarge, "pins",
                   absl::StrCat(pins.size()),
                   absl::StrCat("they take ", pages, " pages of group '", config_.info.name,
                                "', which has ", usable(), " and keeps ", floors_.kv,
                                " for KV and ", floors_.adapters, " for other adapters"));
}

// Those that the group can hold beside its floors, in their order.
void GroupEngine::OnPins(const std::vector<AdapterHandle>& pins) {
  if (lost_) return;
  wanted_pins_.clear();
  wanted_pin_pages_ = 0;
  for (const AdapterHandle& content : pins) {
    if (wanted_pins_.contains(content->digest)) continue;
    const auto footprint = FootprintOf(*content);
    const uint64_t pages = wanted_pin_pages_ + floors_.kv + floors_.adapters +
                           (footprint.ok() ? MostPages(*footprint) : 0);
    if (!footprint.ok() || pages > usable()) {
      LogWarning("adapter ", content->digest.Short(), " is not pinned: ",
                 footprint.ok() ? absl::StrCat("with it the pins and floors take ", pages, " of ",
                                               usable(), " pages")
                                : std::string(footprint.status().message()));
      continue;
    }
    wanted_pins_.emplace(content->digest, *footprint);
    wanted_pin_pages_ += MostPages(*footprint);
  }
  // Those that are no longer wanted go at once: what fits beside the new ones must get on.
  std::map<Digest, AdapterFootprint> kept;
  for (const auto& [digest, footprint] : wanted_pins_) {
    if (pinned_.contains(digest)) kept.emplace(digest, footprint);
  }
  adapters_.SetPins(kept, pins_order_);
  pins_order_ = last_order_;
  pins_pending_ = true;
  ApplyPins();
  Pump();
}

// From when all requests that are here fit beside them, so that a pin makes none of them hopeless.
void GroupEngine::ApplyPins() {
  if (!pins_pending_) return;
  for (const auto& [number, request] : requests_) {
    const absl::Status fits =
        CheckFits(request->resolved.max_positions(), config_.report.geometry.page_tokens,
                  MostPages(request->footprint), usable(), PinnedBeside(*request));
    if (!fits.ok()) return;
  }
  pins_pending_ = false;
  adapters_.SetPins(wanted_pins_, pins_order_);
  pinned_.clear();
  for (const auto& [digest, footprint] : wanted_pins_) pinned_.insert(digest);
}

}  // namespace rootstock
