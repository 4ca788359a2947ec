// The slab of a tp_rank and the geometry of its pages: PROTOCOL §5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/canonical.h"
#include "worker/device/device.h"

namespace rootstock {

// What --num-pages, --page-tokens and the memory at hand ask for.
struct GeometryRequest {
  uint32_t page_tokens = 16;
  uint32_t num_pages = 0;     // 0: what fits budget_bytes
  uint64_t budget_bytes = 0;  // of the slab; looked at when num_pages is 0
};

// The geometry that every tp_rank of the group takes; page_bytes is that of the largest KV share,
// rounded up to 128. kInvalidArgument with the numbers for fewer than 2 pages (page 0 is scratch)
// and for offsets beyond 2^32 · 128 bytes.
absl::StatusOr<PageGeometry> MakeGeometry(const ModelSpec& model, const TpPlan& tp, DType kv_dtype,
                                          const GeometryRequest& request);

// Tokens of a page on a GPU: 16, doubled while a page is under 1 MB, up to 64 (ADR 5).
uint32_t CudaPageTokens(const ModelSpec& model, const TpPlan& tp, DType kv_dtype);

// Half of the host memory that is free now, shared by `ranks_on_host` equal ranks.
uint64_t DefaultHostBudget(int ranks_on_host);

// Of adapters beside the pages: 4 GiB, at most an eighth of the host memory that is free now,
// shared by `ranks_on_host` equal ranks.
uint64_t DefaultHostCacheBytes(int ranks_on_host);

// One allocation of num_pages pages, zeroed. Owns it. Pages are written by the step thread (KV) and
// by whoever loads an adapter into pages that no step names. *Thread-safe: immutable.*
class Slab {
 public:
  static absl::StatusOr<std::unique_ptr<Slab>> Create(Device& device, const PageGeometry& geometry);

  const PageGeometry& geometry() const { return geometry_; }
  std::byte* data() const { return buffer_.data(); }
  // page_bytes bytes, on 128 bytes; page.value < num_pages.
  std::span<std::byte> page(PageId page) const {
    return {data() + size_t{page.value} * geometry_.page_bytes, geometry_.page_bytes};
  }
  // Writes tp_rank's rows of the adapter into its pages (as many as the layout has). Errors as
  // WriteAdapterRows's.
  absl::Status WriteAdapter(const CanonicalAdapter& adapter, const AdapterLayout& layout,
                            int tp_rank, std::span<const PageId> pages, Device& device) const;

 private:
  Slab(DeviceBuffer buffer, const PageGeometry& geometry)
      : buffer_(std::move(buffer)), geometry_(geometry) {}

  DeviceBuffer buffer_;
  PageGeometry geometry_;
};

}  // namespace rootstock
