#include "worker/memory/host_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/device/cpu_copy_lane.h"

namespace rootstock {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{256} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<HostBlocks>> HostBlocks::Create(CopyLane& lane, uint32_t block_bytes,
                                                               uint64_t budget_bytes) {
  std::shared_ptr<HostBlocks> out(new HostBlocks(block_bytes));
  const uint64_t count = budget_bytes / block_bytes;
  const uint64_t a_chunk = std::max<uint64_t>(1, kChunkBytes / block_bytes);
  for (uint64_t begin = 0; begin < count; begin += a_chunk) {
    const uint64_t blocks = std::min(a_chunk, count - begin);
    // A byte more: blocks of two chunks never lie side by side, so that no copy of neighbours runs
    // over two allocations, which CUDA refuses.
    ASSIGN_OR_RETURN(DeviceBuffer chunk,
                     lane.AllocateHost(blocks * block_bytes + 1, "host-cache-bytes"));
    for (uint64_t i = 0; i < blocks; ++i) out->blocks_.push_back(chunk.data() + i * block_bytes);
    out->chunks_.push_back(std::move(chunk));
  }
  out->free_.insert(out->blocks_.begin(), out->blocks_.end());
  return out;
}

std::vector<std::byte*> HostBlocks::Take(uint32_t count) {
  std::lock_guard lock(mutex_);
  if (free_.size() < count) return {};
  const auto end = std::next(free_.begin(), count);
  std::vector<std::byte*> out(free_.begin(), end);
  free_.erase(free_.begin(), end);
  return out;
}

void HostBlocks::GiveBack(std::span<std::byte* const> blocks) {
  std::lock_guard lock(mutex_);
  free_.insert(blocks.begin(), blocks.end());
}

HostImage::HostImage(std::shared_ptr<HostBlocks> blocks, std::vector<std::byte*> pages)
    : blocks_(std::move(blocks)), pages_(std::move(pages)) {}

HostImage::~HostImage() {
  if (blocks_ != nullptr) blocks_->GiveBack(pages_);
}

std::shared_ptr<HostImage> HostImage::Loose(uint32_t num_pages, uint32_t page_bytes) {
  std::vector<DeviceBuffer> own;
  auto memory = AllocateHostMemory(size_t{num_pages} * page_bytes, "adapter image");
  if (!memory.ok()) return nullptr;
  std::byte* const data = memory->data();
  own.push_back(*std::move(memory));
  std::shared_ptr<HostImage> image(new HostImage(std::move(own)));
  for (uint32_t i = 0; i < num_pages; ++i) {
    image->pages_.push_back(data + size_t{i} * page_bytes);
  }
  return image;
}

std::shared_ptr<const HostImage> HostCache::Find(const HostImageKey& key, bool for_load) {
  std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.end(), entries_, it->second);
  if (for_load) it->second->wanted = false;
  return it->second->image;
}

absl::StatusOr<std::shared_ptr<HostImage>> HostCache::Reserve(uint32_t num_pages) {
  std::lock_guard lock(mutex_);
  std::vector<std::byte*> pages = blocks_->Take(num_pages);
  while (pages.empty() && num_pages <= blocks_->total() && EvictOne()) {
    pages = blocks_->Take(num_pages);
  }
  if (pages.empty()) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "host-cache-bytes",
        absl::StrCat(uint64_t{blocks_->total()} * blocks_->block_bytes()),
        absl::StrCat("the adapter takes ", num_pages, " pages of ", blocks_->block_bytes(),
                     " bytes; pinned ones and those in use "
                     "stay"));
  }
  return std::make_shared<HostImage>(blocks_, std::move(pages));
}

uint64_t HostCache::BytesOf(const Entry& entry) const {
  return uint64_t{entry.image->pages().size()} * blocks_->block_bytes();
}

// Handles are given out under the mutex, so what nobody else holds now stays so.
bool HostCache::EvictOne() {
  auto victim = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->image.use_count() > 1 || pinned_.contains(it->key.digest)) continue;
    if (victim == entries_.end() || !it->wanted) victim = it;
    if (!it->wanted) break;
  }
  if (victim == entries_.end()) return false;
  Remove(victim);
  return true;
}

void HostCache::Remove(Entries::iterator entry) {
  const auto bytes = bytes_.find(entry->key.digest);
  bytes->second -= BytesOf(*entry);
  changed_.insert(entry->key.digest);
  if (bytes->second == 0) bytes_.erase(bytes);
  index_.erase(entry->key);
  entries_.erase(entry);
}

void HostCache::Insert(const HostImageKey& key, std::shared_ptr<const HostImage> image,
                       bool wanted) {
  std::lock_guard lock(mutex_);
  if (const auto old = index_.find(key); old != index_.end()) Remove(old->second);
  entries_.push_back({key, std::move(image), wanted});
  index_[key] = std::prev(entries_.end());
  bytes_[key.digest] += BytesOf(entries_.back());
  changed_.insert(key.digest);
}

uint64_t HostCache::Drop(const Digest& digest) {
  std::lock_guard lock(mutex_);
  uint64_t freed = 0;
  pinned_.erase(digest);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    if (entry->key.digest != digest) continue;
    freed += BytesOf(*entry);
    Remove(entry);
  }
  return freed;
}

void HostCache::Pin(const Digest& digest, bool pinned) {
  std::lock_guard lock(mutex_);
  pinned ? static_cast<void>(pinned_.insert(digest)) : static_cast<void>(pinned_.erase(digest));
}

void HostCache::UnpinAll() {
  std::lock_guard lock(mutex_);
  pinned_.clear();
}

std::vector<HostChange> HostCache::TakeChanges() {
  std::lock_guard lock(mutex_);
  std::vector<HostChange> out;
  for (const Digest& digest : std::exchange(changed_, {})) {
    const auto it = bytes_.find(digest);
    out.push_back({digest, it == bytes_.end() ? 0 : it->second, it != bytes_.end()});
  }
  return out;
}

std::vector<HostChange> HostCache::List() const {
  std::lock_guard lock(mutex_);
  std::vector<HostChange> out;
  for (const auto& [digest, bytes] : bytes_) out.push_back({digest, bytes, true});
  return out;
}

uint64_t HostCache::used_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [digest, bytes] : bytes_) sum += bytes;
  return sum;
}

}  // namespace rootstock
