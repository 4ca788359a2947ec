// An adapter whose rows lie in pages: where each row is, its true lora_rank, its scale.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/lora_spec.h"
#include "worker/device/device.h"
#include "worker/ops/ops.h"

namespace rootstock {

// One tp_rank's view of an adapter; owns the tables, not the pages. *Immutable, thread-safe.*
class DeviceAdapter {
 public:
  // pages: layout.num_pages() of them, in order. Errors of CheckPages; RESOURCE_EXHAUSTED when the
  // device has no place for the tables.
  static absl::StatusOr<std::unique_ptr<DeviceAdapter>> Create(
      const AdapterLayout& layout, const LoraSpec& lora, int num_layers, int tp_rank,
      const PageGeometry& geometry, std::vector<PageId> pages, Device& device);
  // kInvalidArgument for another count of pages than the layout's, or one out of range.
  static absl::Status CheckPages(const AdapterLayout& layout, const PageGeometry& geometry,
                                 const std::vector<PageId>& pages);
  // Bytes of the tables of one adapter on tp_rank.
  static size_t TableBytes(const AdapterLayout& layout, int num_layers, int tp_rank);
  // The same beside the steps, of pages that CheckPages took: `tables` is device memory of
  // TableBytes at least, to which the caller copies `image`, TableBytes long, that is written here.
  static std::unique_ptr<DeviceAdapter> Make(const AdapterLayout& layout, const LoraSpec& lora,
                                             int num_layers, int tp_rank,
                                             const PageGeometry& geometry,
                                             std::vector<PageId> pages,
                                             std::shared_ptr<std::byte> tables, std::byte* image);
  DeviceAdapter(const DeviceAdapter&) = delete;
  DeviceAdapter& operator=(const DeviceAdapter&) = delete;

  uint64_t layout_id() const { return layout_id_; }
  const std::vector<PageId>& pages() const { return pages_; }
  // Whether the tp_ranks must complete v together: a fully sharded one over several.
  bool fully_sharded() const { return fully_sharded_; }
  int max_lora_rank() const { return max_lora_rank_; }  // of its modules, over all ranks
  uint32_t modules() const { return modules_; }         // ModuleBits of some layer, over all ranks
  // [kNumLoraViews][num_layers][7], by Module; lora_rank 0 where there is nothing.
  std::span<const LoraSite> sites() const { return sites_; }
  const LoraSite* device_sites() const { return device_sites_; }  // the same in device memory
  std::byte* tables() const { return tables_.get(); }

 private:
  DeviceAdapter() = default;

  void FillSites(const AdapterLayout& layout, const LoraSpec& lora, int tp_rank,
                 const uint32_t* offsets);

  uint64_t layout_id_ = 0;
  bool fully_sharded_ = false;
  int max_lora_rank_ = 0;
  uint32_t modules_ = 0;
  std::vector<PageId> pages_;
  std::shared_ptr<std::byte> tables_;  // sites, then row offsets in 128-byte units of the slab
  const LoraSite* device_sites_ = nullptr;
  std::vector<LoraSite> sites_;  // point into tables_
};

}  // namespace rootstock
