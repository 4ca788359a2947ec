#include "worker/lora/device_adapter.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

size_t SitesBytes(int num_layers) {
  return size_t{kNumLoraViews} * num_layers * kAllModules.size() * sizeof(LoraSite);
}

}  // namespace

absl::Status DeviceAdapter::CheckPages(const AdapterLayout& layout, const PageGeometry& geometry,
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

size_t DeviceAdapter::TableBytes(const AdapterLayout& layout, int num_layers, int tp_rank) {
  return SitesBytes(num_layers) + layout.rows(tp_rank).size() * sizeof(uint32_t);
}

std::unique_ptr<DeviceAdapter> DeviceAdapter::Make(const AdapterLayout& layout,
                                                   const LoraSpec& lora, int num_layers,
                                                   int tp_rank, const PageGeometry& geometry,
                                                   std::vector<PageId> pages,
                                                   std::shared_ptr<std::byte> tables,
                                                   std::byte* image) {
  std::unique_ptr<DeviceAdapter> adapter(new DeviceAdapter);
  adapter->layout_id_ = layout.id();
  adapter->fully_sharded_ =
      layout.sharding() == LoraSharding::kFullySharded && layout.tp_size() > 1;
  for (const LoraModule& module : lora.modules) {
    adapter->max_lora_rank_ = std::max(adapter->max_lora_rank_, module.lora_rank);
    adapter->modules_ |= ModuleBit(module.module);
  }
  adapter->pages_ = std::move(pages);
  adapter->sites_.resize(kNumLoraViews * num_layers * kAllModules.size());
  adapter->tables_ = std::move(tables);
  const size_t sites_bytes = SitesBytes(num_layers);
  adapter->FillSites(layout, lora, tp_rank,
                     reinterpret_cast<const uint32_t*>(adapter->tables() + sites_bytes));
  std::memcpy(image, adapter->sites_.data(), sites_bytes);
  auto* out = reinterpret_cast<uint32_t*>(image + sites_bytes);
  const uint32_t page_units = geometry.page_bytes / kRowAlignment;
  for (const RowPlace& row : layout.rows(tp_rank)) {
    *out++ = adapter->pages_[row.page].value * page_units + row.offset / kRowAlignment;
  }
  adapter->device_sites_ = reinterpret_cast<const LoraSite*>(adapter->tables());
  return adapter;
}

absl::StatusOr<std::unique_ptr<DeviceAdapter>> DeviceAdapter::Create(
    const AdapterLayout& layout, const LoraSpec& lora, int num_layers, int tp_rank,
    const PageGeometry& geometry, std::vector<PageId> pages, Device& device) {
  RETURN_IF_ERROR(CheckPages(layout, geometry, pages));
  const size_t bytes = TableBytes(layout, num_layers, tp_rank);
  ASSIGN_OR_RETURN(DeviceBuffer memory, device.Allocate(bytes, "adapter tables"));
  const auto owner = std::make_shared<DeviceBuffer>(std::move(memory));
  std::shared_ptr<std::byte> tables(owner, owner->data());
  ASSIGN_OR_RETURN(std::byte * staged, device.Stage(tables.get(), bytes));
  auto adapter = Make(layout, lora, num_layers, tp_rank, geometry, std::move(pages),
                      std::move(tables), staged);
  RETURN_IF_ERROR(device.WriteBack());
  return adapter;
}

}  // namespace rootstock
