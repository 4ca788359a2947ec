// The pages of one group, shared by KV and adapters: PROTOCOL §5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace rootstock {

// Sole allocator of a group's slab. Page 0 is scratch and never given.
// A page remembers the last Step that named it: a later Step may take it at once (stream order
// makes that safe), a Load only when that Step has completed. Pages named by a Load or a Drop are
// given back by their owner when that command has completed. *Engine thread only.*
class PageAllocator {
 public:
  explicit PageAllocator(uint32_t num_pages);

  // For rows of the next Step. All or nothing; each page has one reference.
  std::optional<std::vector<PageId>> TakeKv(uint32_t n);
  // For a Load: at most n pages, none of them named by a command that has not completed.
  std::vector<PageId> TakeForAdapter(uint32_t n);
  // Pages that an attached group reports as an adapter's. False, and nothing taken, when one is
  // scratch, out of range, named twice or taken.
  bool Adopt(std::span<const PageId> pages);

  // One more reader of a full KV page: a sample that shares the prompt.
  void Share(PageId page);
  // Drops one reference of each. last_step: the last Step sent that names them, id 0 for none.
  void ReleaseKv(std::span<const PageId> pages, CommandId last_step);
  // All commands that name them have completed, or none was sent.
  void ReleaseAdapter(std::span<const PageId> pages);
  // Steps complete in order.
  void StepCompleted(CommandId step);

  uint32_t num_pages() const { return static_cast<uint32_t>(pages_.size()); }
  uint32_t kv_pages() const { return kv_; }
  uint32_t adapter_pages() const { return adapter_; }
  // For Steps; those of them that a Load may take now.
  uint32_t free_pages() const { return static_cast<uint32_t>(clean_.size() + dirty_.size()); }
  uint32_t free_for_loads() const { return static_cast<uint32_t>(clean_.size()); }
  uint32_t references(PageId page) const { return pages_[page.value].references; }

 private:
  enum class Owner : uint8_t { kFree, kKv, kAdapter };
  struct Page {
    Owner owner = Owner::kFree;
    uint32_t references = 0;
    CommandId last_step{0};
  };

  std::vector<Page> pages_;
  std::vector<PageId> clean_;  // free, last command completed
  std::vector<PageId> dirty_;  // free, named by a Step that has not completed
  CommandId completed_step_{0};
  uint32_t kv_ = 0;
  uint32_t adapter_ = 0;
};

}  // namespace rootstock
