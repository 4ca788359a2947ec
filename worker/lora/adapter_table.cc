#include "worker/lora/adapter_table.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace rootstock {

absl::Status AdapterTable::Add(const Digest& digest, std::unique_ptr<DeviceAdapter> adapter) {
  if (!adapters_.emplace(digest, std::move(adapter)).second) {
    return MakeError(absl::StatusCode::kAlreadyExists, Reason::kInvalidArgument, "adapter",
                     digest.Short(), "is loaded; drop it before it is loaded at other pages");
  }
  return absl::OkStatus();
}

const DeviceAdapter* AdapterTable::Find(const Digest& digest) const {
  const auto it = adapters_.find(digest);
  return it == adapters_.end() ? nullptr : it->second.get();
}

bool AdapterTable::Drop(const Digest& digest) { return adapters_.erase(digest) != 0; }

std::vector<ResidentAdapter> AdapterTable::List() const {
  std::vector<ResidentAdapter> out;
  out.reserve(adapters_.size());
  for (const auto& [digest, adapter] : adapters_) {
    out.push_back({digest, adapter->layout_id(), adapter->pages()});
  }
  std::sort(out.begin(), out.end(),
            [](const ResidentAdapter& a, const ResidentAdapter& b) { return a.digest < b.digest; });
  return out;
}

}  // namespace rootstock
