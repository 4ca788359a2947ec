#include "worker/lora/device_adapter.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

absl::Status CheckPages(const AdapterLayout& layout, const PageGeometry& geometry,
                        const std::vector<PageId>& pages) {
  if (pages.size() != layout.num_pages()) {
    return InvalidField(Reason::kInvalidArgument, "pages", absl::StrCat(pages.size()),
                        absl::StrCat("the adapter takes ", layout.num_pages(), " pages"));
  }
  for (const PageId page : pages) {
    if (page.value == 0 || page.value >= geometry.num_pages) {
      return InvalidField(Reason::kInvalidArgument, "page", absl::StrCat(page.value),
                          absl::StrCat("pages 1 to ", geometry.num_pages - 1, " hold adapters"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceAdapter>> DeviceAdapter::Create(const AdapterLayout& layout,
                                                                     const LoraSpec& lora,
                                                                     int num_layers, int tp_rank,
                                                                     const PageGeometry& geometry,
                                                                     std::vector<PageId> pages) {
  if (layout.sharding() != LoraSharding::kReplicated || layout.dtype() != DType::kF32) {
    return MakeError(
        absl::StatusCode::kUnimplemented, Reason::kInvalidArgument, "sharding",
        layout.sharding() == LoraSharding::kReplicated ? "replicated" : "fully_sharded",
        "this worker computes with replicated f32 adapters");
  }
  RETURN_IF_ERROR(CheckPages(layout, geometry, pages));
  std::unique_ptr<DeviceAdapter> adapter(new DeviceAdapter);
  adapter->layout_id_ = layout.id();
  adapter->pages_ = std::move(pages);
  const uint32_t page_units = geometry.page_bytes / kRowAlignment;
  for (const RowPlace& row : layout.rows(tp_rank)) {
    adapter->row_offsets_.push_back(adapter->pages_[row.page].value * page_units +
                                    row.offset / kRowAlignment);
  }
  const size_t modules = kAllModules.size();
  adapter->sites_.resize(num_layers * modules);
  for (const LayoutEntry& entry : layout.entries(tp_rank)) {
    LoraSite& site = adapter->sites_[entry.layer * modules + static_cast<size_t>(entry.module)];
    const uint32_t* rows = adapter->row_offsets_.data() + entry.first_row;
    (entry.role == LoraRole::kA ? site.a : site.b) = rows;
    site.lora_rank = entry.ranks.size();
  }
  for (const LoraModule& module : lora.modules) {
    adapter->sites_[module.layer * modules + static_cast<size_t>(module.module)].scale =
        module.scale;
  }
  return adapter;
}

}  // namespace rootstock
