#include "coordinator/rpc/adapter_message.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_layout.h"
#include "coordinator/engine/footprint.h"

namespace rootstock {
namespace {

// What both kinds of message say in the same fields.
template <typename Message>
void FillCommon(const AdapterEntry& entry, Message* out) {
  out->set_name(entry.name);
  out->set_tenant(entry.tenant);
  out->set_digest(entry.digest.Hex());
  out->set_state(AdapterStateName(entry.state));
  out->set_registered_unix_ms(entry.registered_unix_ms);
  out->set_last_used_unix_ms(entry.last_used_unix_ms);
  out->set_version(entry.version);
  out->set_stored_in(entry.stored_in);
  out->set_newest(entry.newest);
  for (const std::string& group : entry.pins) out->add_pins(ShownPin(group));
  for (const std::string& alias : entry.aliases) out->add_aliases(alias);
}

}  // namespace

std::string ShownPin(const std::string& group) { return group.empty() ? "*" : group; }

AdapterMessages::AdapterMessages(const EngineStatus& status, const ModelSpec& model)
    : model_(model), sharding_(status.lora_sharding) {
  for (const GroupStatus& in : status.groups) {
    Group group{.name = in.info.name,
                .compute_dtype = in.compute_dtype,
                .page_bytes = in.geometry.page_bytes,
                .usable_pages = in.geometry.num_pages - std::min(1u, in.geometry.num_pages)};
    auto tp = MakeTpPlan(model, static_cast<int>(in.info.tp_size));
    if (tp.ok()) group.tp = *std::move(tp);
    for (const ResidentAdapter& adapter : in.adapters) group.resident[adapter.digest] = adapter;
    for (const CachedAdapter& adapter : in.cached) group.cached.emplace(adapter.digest, adapter);
    groups_.push_back(std::move(group));
  }
}

// Pages that the adapter takes on each group. A layout that does not fit a group has none: the
// engine refuses it by name.
void AdapterMessages::AddPages(const AdapterHandle& content, PagesList* out) const {
  if (content == nullptr) return;
  for (const Group& group : groups_) {
    if (!group.tp) continue;
    const auto ways = FindWays(model_, content->spec, *group.tp, sharding_, group.compute_dtype,
                               group.page_bytes);
    if (!ways.ok()) continue;
    const AdapterFootprint way = ChooseWay(*ways, group.usable_pages, group.usable_pages);
    v1::GroupPages* pages = out->Add();
    pages->set_group(group.name);
    pages->set_pages(way.pages);
    pages->set_page_bytes(group.page_bytes);
    pages->set_sharding(LoraShardingName(way.sharding));
  }
}

// The layout that an id is of; nothing when it is of neither way.
void AdapterMessages::AddSharding(const Group& group, const AdapterContent& content,
                                  uint64_t layout_id, v1::Residency* out) const {
  if (!group.tp) return;
  for (const LoraSharding sharding : {LoraSharding::kReplicated, LoraSharding::kFullySharded}) {
    const auto layout = AdapterLayout::Create(model_, content.spec, *group.tp, sharding,
                                              group.compute_dtype, group.page_bytes);
    if (!layout.ok() || layout->id() != layout_id) continue;
    out->set_sharding(LoraShardingName(sharding));
    for (int r = 0; r < layout->tp_size(); ++r) out->add_tp_rank_bytes(layout->row_bytes(r));
  }
}

void AdapterMessages::AddResidency(const Digest& digest, const AdapterHandle& content,
                                   ResidencyList* out) const {
  for (const Group& group : groups_) {
    const auto add = [&](Tier tier, uint64_t bytes) {
      v1::Residency* place = out->Add();
      place->set_group(group.name);
      place->set_tier(TierName(tier));
      place->set_bytes(bytes);
      return place;
    };
    if (const auto it = group.resident.find(digest); it != group.resident.end()) {
      const uint64_t pages = it->second.pages.size();
      v1::Residency* place = add(Tier::kDevice, pages * group.page_bytes);
      place->set_pages(static_cast<uint32_t>(pages));
      if (content != nullptr) AddSharding(group, *content, it->second.layout_id, place);
    }
    const auto [begin, end] = group.cached.equal_range(digest);
    for (auto it = begin; it != end; ++it) add(it->second.tier, it->second.bytes);
  }
}

absl::Status AdapterMessages::Fill(const AdapterEntry& entry, const AdapterHandle& content,
                                   v1::Adapter* out) const {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::Receipt* receipt = out->mutable_receipt();
  for (const std::string& json : {entry.receipt_json, entry.config_json}) {
    v1::Receipt part;
    const auto parsed = google::protobuf::util::JsonStringToMessage(json, &part, options);
    if (!parsed.ok()) {
      return absl::InternalError(absl::StrCat("the receipt of ", entry.name,
                                              " can't be read: ", std::string(parsed.message())));
    }
    receipt->MergeFrom(part);
  }
  FillCommon(entry, out);
  receipt->set_digest(entry.digest.Hex());
  receipt->set_blob_bytes(entry.blob_bytes);
  AddPages(content, receipt->mutable_pages());
  AddResidency(entry.digest, content, out->mutable_residency());
  return absl::OkStatus();
}

void AdapterMessages::Fill(const AdapterEntry& entry, const AdapterHandle& content,
                           v1::AdapterSummary* out) const {
  FillCommon(entry, out);
  out->set_blob_bytes(entry.blob_bytes);
  if (content != nullptr) {
    std::set<int> ranks;
    for (const auto& module : content->spec.modules) ranks.insert(module.lora_rank);
    out->set_modules(static_cast<uint32_t>(content->spec.modules.size()));
    out->mutable_lora_ranks()->Assign(ranks.begin(), ranks.end());
  }
  AddPages(content, out->mutable_pages());
  AddResidency(entry.digest, content, out->mutable_residency());
}

}  // namespace rootstock
