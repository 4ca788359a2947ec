#include "worker/runtime/table_memory.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace rootstock {
namespace {

// Adapters of nearly the same shape share pieces.
constexpr size_t kGrain = 4096;
constexpr char kTablesPurpose[] = "adapter tables";

}  // namespace

absl::Status TableMemory::AddChunk(size_t bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer chunk, lane_.Allocate(bytes, kTablesPurpose));
  std::lock_guard lock(pieces_->mutex);
  if (pieces_->left > 0) pieces_->free.emplace(pieces_->left, pieces_->next);
  pieces_->next = chunk.data();
  pieces_->left = bytes;
  pieces_->chunks.push_back(std::move(chunk));
  return absl::OkStatus();
}

absl::Status TableMemory::Refill() {
  {
    std::lock_guard lock(pieces_->mutex);
    if (pieces_->left >= kChunkBytes / 2) return absl::OkStatus();
  }
  return AddChunk(kChunkBytes);
}

// What is more than twice as large is kept for those who need it.
std::byte* TableMemory::Cut(size_t bytes, size_t* got) {
  *got = bytes;
  if (const auto it = pieces_->free.lower_bound(bytes);
      it != pieces_->free.end() && it->first <= 2 * bytes) {
    *got = it->first;
    return pieces_->free.extract(it).mapped();
  }
  if (pieces_->left < bytes) return nullptr;
  pieces_->left -= bytes;
  return std::exchange(pieces_->next, pieces_->next + bytes);
}

absl::StatusOr<std::shared_ptr<std::byte>> TableMemory::Take(size_t bytes) {
  bytes = std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
  std::unique_lock lock(pieces_->mutex);
  size_t got = 0;
  std::byte* data = nullptr;
  while ((data = Cut(bytes, &got)) == nullptr) {
    lock.unlock();
    const absl::Status added = AddChunk(std::max(kChunkBytes, bytes));
    lock.lock();
    if (added.ok()) continue;
    const auto larger = pieces_->free.lower_bound(bytes);
    if (larger == pieces_->free.end()) return added;
    got = larger->first;
    data = pieces_->free.extract(larger).mapped();
    break;
  }
  return std::shared_ptr<std::byte>(data, [pieces = pieces_, got](std::byte* held) {
    std::lock_guard guard(pieces->mutex);
    pieces->free.emplace(got, held);
  });
}

}  // namespace rootstock
