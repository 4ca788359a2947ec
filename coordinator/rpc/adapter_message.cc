#include "coordinator/rpc/adapter_message.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_layout.h"
#include "common/tp/tp.h"

namespace rootstock {
namespace {

// Pages that the adapter takes on a group, resident or not. A layout that does not fit the group
// has none: the engine refuses it by name.
void AddPages(const AdapterContent& content, const GroupStatus& group, const ModelSpec& model,
              v1::Receipt* receipt) {
  const auto tp = MakeTpPlan(model, static_cast<int>(group.info.tp_size));
  if (!tp.ok()) return;
  const auto layout = AdapterLayout::Create(model, content.spec, *tp, LoraSharding::kReplicated,
                                            group.compute_dtype, group.geometry.page_bytes);
  if (!layout.ok()) return;
  v1::GroupPages* pages = receipt->add_pages();
  pages->set_group(group.info.name);
  pages->set_pages(layout->num_pages());
  pages->set_page_bytes(group.geometry.page_bytes);
}

void AddResidency(const Digest& digest, const GroupStatus& group, v1::Adapter* out) {
  for (const ResidentAdapter& resident : group.adapters) {
    if (resident.digest != digest) continue;
    v1::Residency* place = out->add_residency();
    place->set_group(group.info.name);
    place->set_tier("device");
    place->set_pages(static_cast<uint32_t>(resident.pages.size()));
    place->set_bytes(static_cast<uint64_t>(resident.pages.size()) * group.geometry.page_bytes);
  }
}

}  // namespace

absl::Status FillAdapter(const AdapterEntry& entry, const AdapterHandle& content,
                         const EngineStatus& status, const ModelSpec& model, v1::Adapter* out) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(entry.receipt_json,
                                                                  out->mutable_receipt(), options);
  if (!parsed.ok()) {
    return absl::InternalError(absl::StrCat("the receipt of ", entry.name,
                                            " can't be read: ", std::string(parsed.message())));
  }
  out->set_name(entry.name);
  out->set_tenant(entry.tenant);
  out->set_digest(entry.digest.Hex());
  out->set_registered_unix_ms(entry.registered_unix_ms);
  out->set_last_used_unix_ms(entry.last_used_unix_ms);
  out->mutable_receipt()->set_digest(entry.digest.Hex());
  out->mutable_receipt()->set_blob_bytes(entry.blob_bytes);
  for (const GroupStatus& group : status.groups) {
    if (content != nullptr) AddPages(*content, group, model, out->mutable_receipt());
    AddResidency(entry.digest, group, out);
  }
  return absl::OkStatus();
}

}  // namespace rootstock
