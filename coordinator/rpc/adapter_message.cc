#include "coordinator/rpc/adapter_message.h"

#include <google/protobuf/util/json_util.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_layout.h"

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
}

}  // namespace

AdapterMessages::AdapterMessages(const EngineStatus& status, const ModelSpec& model)
    : model_(model) {
  for (const GroupStatus& in : status.groups) {
    Group group{.name = in.info.name,
                .compute_dtype = in.compute_dtype,
                .page_bytes = in.geometry.page_bytes};
    auto tp = MakeTpPlan(model, static_cast<int>(in.info.tp_size));
    if (tp.ok()) group.tp = *std::move(tp);
    for (const ResidentAdapter& adapter : in.adapters) {
      group.resident[adapter.digest] = static_cast<uint32_t>(adapter.pages.size());
    }
    groups_.push_back(std::move(group));
  }
}

// Pages that the adapter takes on each group. A layout that does not fit a group has none: the
// engine refuses it by name.
void AdapterMessages::AddPages(const AdapterHandle& content, PagesList* out) const {
  if (content == nullptr) return;
  for (const Group& group : groups_) {
    if (!group.tp) continue;
    const auto layout =
        AdapterLayout::Create(model_, content->spec, *group.tp, LoraSharding::kReplicated,
                              group.compute_dtype, group.page_bytes);
    if (!layout.ok()) continue;
    v1::GroupPages* pages = out->Add();
    pages->set_group(group.name);
    pages->set_pages(layout->num_pages());
    pages->set_page_bytes(group.page_bytes);
  }
}

void AdapterMessages::AddResidency(const Digest& digest, ResidencyList* out) const {
  for (const Group& group : groups_) {
    const auto it = group.resident.find(digest);
    if (it == group.resident.end()) continue;
    v1::Residency* place = out->Add();
    place->set_group(group.name);
    place->set_tier("device");
    place->set_pages(it->second);
    place->set_bytes(uint64_t{it->second} * group.page_bytes);
  }
}

absl::Status AdapterMessages::Fill(const AdapterEntry& entry, const AdapterHandle& content,
                                   v1::Adapter* out) const {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::Receipt* receipt = out->mutable_receipt();
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(entry.receipt_json, receipt, options);
  if (!parsed.ok()) {
    return absl::InternalError(absl::StrCat("the receipt of ", entry.name,
                                            " can't be read: ", std::string(parsed.message())));
  }
  FillCommon(entry, out);
  receipt->set_digest(entry.digest.Hex());
  receipt->set_blob_bytes(entry.blob_bytes);
  AddPages(content, receipt->mutable_pages());
  AddResidency(entry.digest, out->mutable_residency());
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
  AddResidency(entry.digest, out->mutable_residency());
}

}  // namespace rootstock
