#include "worker/lora/device_adapter.h"

#include <algorithm>
#include <cstring>

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

// Each entry in the view that reads it. The tables hold offsets of rows, in device memory.
void DeviceAdapter::FillSites(const AdapterLayout& layout, const LoraSpec& lora, int tp_rank,
                              const uint32_t* offsets) {
  const size_t modules = kAllModules.size();
  const size_t view_sites = sites_.size() / kNumLoraViews;
  const auto& entries = layout.entries(tp_rank);
  for (size_t i = 0; i < entries.size(); ++i) {
    const LayoutEntry& entry = entries[i];
    LoraView view = LoraView::kShrink;
    if (entry.role == LoraRole::kB) {
      const bool slice = fully_sharded_ && IsRowParallel(entry.module);
      view = slice ? LoraView::kExpandSlice : LoraView::kExpand;
    }
    LoraSite& site = sites_[static_cast<size_t>(view) * view_sites + entry.layer * modules +
                            static_cast<size_t>(entry.module)];
    (entry.role == LoraRole::kA ? site.a : site.b) = offsets + entry.first_row;
    site.lora_rank = entry.ranks.size();
    site.scale = lora.modules[i / 2].scale;
  }
}

absl::StatusOr<std::unique_ptr<DeviceAdapter>> DeviceAdapter::Create(
    const AdapterLayout& layout, const LoraSpec& lora, int num_layers, int tp_rank,
    const PageGeometry& geometry, std::vector<PageId> pages, Device& device) {
  RETURN_IF_ERROR(CheckPages(layout, geometry, pages));
  std::unique_ptr<DeviceAdapter> adapter(new DeviceAdapter);
  adapter->layout_id_ = layout.id();
  adapter->fully_sharded_ =
      layout.sharding() == LoraSharding::kFullySharded && layout.tp_size() > 1;
  for (const LoraModule& module : lora.modules) {
    adapter->max_lora_rank_ = std::max(adapter->max_lora_rank_, module.lora_rank);
  }
  adapter->pages_ = std::move(pages);
  adapter->sites_.resize(kNumLoraViews * num_layers * kAllModules.size());
  const size_t sites_bytes = adapter->sites_.size() * sizeof(LoraSite);
  const auto& places = layout.rows(tp_rank);
  const size_t bytes = sites_bytes + places.size() * sizeof(uint32_t);
  ASSIGN_OR_RETURN(adapter->tables_, device.Allocate(bytes, "adapter tables"));
  adapter->FillSites(layout, lora, tp_rank,
                     reinterpret_cast<const uint32_t*>(adapter->tables_.data() + sites_bytes));
  ASSIGN_OR_RETURN(std::byte * staged, device.Stage(adapter->tables_.data(), bytes));
  std::memcpy(staged, adapter->sites_.data(), sites_bytes);
  auto* out = reinterpret_cast<uint32_t*>(staged + sites_bytes);
  const uint32_t page_units = geometry.page_bytes / kRowAlignment;
  for (const RowPlace& row : places) {
    *out++ = adapter->pages_[row.page].value * page_units + row.offset / kRowAlignment;
  }
  RETURN_IF_ERROR(device.WriteBack());
  adapter->device_sites_ = adapter->tables_.as<const LoraSite>();
  return adapter;
}

}  // namespace rootstock
