#include "worker/memory/slab.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"

namespace rootstock {

absl::StatusOr<PageGeometry> MakeGeometry(const ModelSpec& model, const TpPlan& tp, DType kv_dtype,
                                          const GeometryRequest& request) {
  if (request.page_tokens < 1) {
    return InvalidField(Reason::kInvalidArgument, "page_tokens", "0", "must be at least 1");
  }
  const uint64_t kv_bytes = KvBytesPerToken(model, tp, kv_dtype) * request.page_tokens;
  const uint64_t page_bytes = (kv_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  if (page_bytes > UINT32_MAX) {
    return InvalidField(Reason::kInvalidArgument, "page_tokens", absl::StrCat(request.page_tokens),
                        absl::StrCat("a page of ", page_bytes, " bytes is over 4 GiB"));
  }
  // A uint32 row offset in units of kRowAlignment reaches this far.
  const uint64_t most = (uint64_t{UINT32_MAX} + 1) * kRowAlignment / page_bytes;
  const uint64_t pages = request.num_pages != 0 ? request.num_pages
                                                : std::min(most, request.budget_bytes / page_bytes);
  if (pages < 2 || pages > most) {
    return InvalidField(
        Reason::kInvalidArgument, "num_pages", absl::StrCat(pages),
        absl::StrCat("2 to ", most, " pages of ", page_bytes, " bytes are possible; the budget is ",
                     request.budget_bytes, " bytes"));
  }
  return PageGeometry{static_cast<uint32_t>(pages), static_cast<uint32_t>(page_bytes),
                      request.page_tokens};
}

uint32_t CudaPageTokens(const ModelSpec& model, const TpPlan& tp, DType kv_dtype) {
  const uint64_t bytes = KvBytesPerToken(model, tp, kv_dtype);
  uint32_t tokens = 16;
  while (tokens < 64 && tokens * bytes < uint64_t{1} << 20) tokens *= 2;
  return tokens;
}

uint64_t DefaultHostBudget(int ranks_on_host) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kib * 1024 / 2 / std::max(1, ranks_on_host);
  }
  return 0;
}

uint64_t DefaultHostCacheBytes(int ranks_on_host) {
  return std::min(uint64_t{4} << 30, DefaultHostBudget(ranks_on_host) / 4);
}

absl::StatusOr<std::unique_ptr<Slab>> Slab::Create(Device& device, const PageGeometry& geometry) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer,
                   device.Allocate(size_t{geometry.num_pages} * geometry.page_bytes, "num_pages"));
  return std::unique_ptr<Slab>(new Slab(std::move(buffer), geometry));
}

absl::Status Slab::WriteAdapter(const CanonicalAdapter& adapter, const AdapterLayout& layout,
                                int tp_rank, std::span<const PageId> pages, Device& device) const {
  std::vector<std::byte*> out;
  if (device.host_addressable()) {
    for (const PageId id : pages) out.push_back(page(id).data());
    return WriteAdapterRows(adapter, layout, tp_rank, out);
  }
  const size_t page_bytes = geometry_.page_bytes;
  std::vector<std::byte> image(pages.size() * page_bytes);
  for (size_t i = 0; i < pages.size(); ++i) out.push_back(image.data() + i * page_bytes);
  RETURN_IF_ERROR(WriteAdapterRows(adapter, layout, tp_rank, out));
  for (size_t i = 0; i < pages.size(); ++i) {
    ASSIGN_OR_RETURN(std::byte * staged, device.Stage(page(pages[i]).data(), page_bytes));
    std::memcpy(staged, out[i], page_bytes);
    RETURN_IF_ERROR(device.WriteBack());
  }
  return absl::OkStatus();
}

}  // namespace rootstock
