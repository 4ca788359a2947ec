// The host tier of a tp_rank: page images of adapters, ready to be copied to the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/lora_spec.h"
#include "worker/device/copy_lane.h"

namespace rootstock {

// Equal blocks of host memory, taken once. Shared by the images that lie in them. *Thread-safe.*
class HostBlocks {
 public:
  // As many blocks as `budget_bytes` hold, in chunks that are taken one by one.
  // RESOURCE_EXHAUSTED/no_memory.
  static absl::StatusOr<std::shared_ptr<HostBlocks>> Create(CopyLane& lane, uint32_t block_bytes,
                                                            uint64_t budget_bytes);
  uint32_t block_bytes() const { return block_bytes_; }
  uint32_t total() const { return static_cast<uint32_t>(blocks_.size()); }
  // `count` blocks, neighbours first; empty when there are fewer.
  std::vector<std::byte*> Take(uint32_t count);
  void GiveBack(std::span<std::byte* const> blocks);

 private:
  explicit HostBlocks(uint32_t block_bytes) : block_bytes_(block_bytes) {}

  const uint32_t block_bytes_;
  std::vector<DeviceBuffer> chunks_;
  std::vector<std::byte*> blocks_;
  std::mutex mutex_;
  std::set<std::byte*> free_;
};

// Of an image: pages that hold rows up to each layer [num_layers], and the bytes used of the last.
struct LayerEnds {
  std::vector<uint32_t> pages;
  uint32_t last_page_bytes = 0;
};

// One adapter in page layout on this tp_rank. Owns its memory: blocks of the cache, or where the
// cache has no room, memory of its own. Written by whoever builds it, then immutable.
class HostImage {
 public:
  // page_bytes each, of memory that is this image's alone.
  static std::shared_ptr<HostImage> Loose(uint32_t num_pages, uint32_t page_bytes);
  HostImage(std::shared_ptr<HostBlocks> blocks, std::vector<std::byte*> pages);
  ~HostImage();
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  std::span<std::byte* const> pages() const { return pages_; }
  bool in_cache() const { return blocks_ != nullptr; }

  // What the pages hold; filled in with them.
  std::shared_ptr<const AdapterLayout> layout;
  std::shared_ptr<const LoraSpec> lora;
  LayerEnds ends;

 private:
  explicit HostImage(std::vector<DeviceBuffer> own) : own_(std::move(own)) {}

  std::shared_ptr<HostBlocks> blocks_;
  std::vector<DeviceBuffer> own_;
  std::vector<std::byte*> pages_;
};

struct HostImageKey {
  Digest digest;
  uint64_t layout_id = 0;
  friend auto operator<=>(const HostImageKey&, const HostImageKey&) = default;
};

// All images of a digest together.
struct HostChange {
  Digest digest;
  uint64_t bytes = 0;
  bool present = false;
};

// Images within a byte budget. The least recently used goes first, never one that is pinned or that
// somebody holds; one that was fetched for a load that has not begun goes after all others.
// *Thread-safe.*
class HostCache {
 public:
  explicit HostCache(std::shared_ptr<HostBlocks> blocks) : blocks_(std::move(blocks)) {}

  // Null when absent. Counts as a use; for_load: what it was fetched for.
  std::shared_ptr<const HostImage> Find(const HostImageKey& key, bool for_load);
  // Memory for an image, not yet in the cache. RESOURCE_EXHAUSTED/no_memory with the numbers.
  absl::StatusOr<std::shared_ptr<HostImage>> Reserve(uint32_t num_pages);
  // Of Reserve's and complete; what was there under the key goes. wanted: a load will follow.
  void Insert(const HostImageKey& key, std::shared_ptr<const HostImage> image, bool wanted);
  // Bytes that are free now, or when the last who holds them lets go. Pinned ones too.
  uint64_t Drop(const Digest& digest);
  void Pin(const Digest& digest, bool pinned);
  void UnpinAll();

  // Since the last call.
  std::vector<HostChange> TakeChanges();
  // All that is there.
  std::vector<HostChange> List() const;
  uint64_t used_bytes() const;

 private:
  struct Entry {
    HostImageKey key;
    std::shared_ptr<const HostImage> image;
    bool wanted = false;
  };
  using Entries = std::list<Entry>;  // least recently used first

  uint64_t BytesOf(const Entry& entry) const;
  bool EvictOne();
  void Remove(Entries::iterator entry);

  const std::shared_ptr<HostBlocks> blocks_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::map<HostImageKey, Entries::iterator> index_;
  std::set<Digest> pinned_;
  std::map<Digest, uint64_t> bytes_;  // of present ones
  std::set<Digest> changed_;
};

}  // namespace rootstock
