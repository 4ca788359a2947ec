#include "coordinator/memory/page_allocator.h"

#include <algorithm>
#include <cstdlib>

#include "common/base/log.h"

namespace rootstock {
namespace {

// A wrong page corrupts somebody's answer: our own bugs stop here.
void Require(bool condition, const char* what, PageId page) {
  if (condition) return;
  LogError("page allocator: ", what, ", page ", page.value);
  std::abort();
}

}  // namespace

PageAllocator::PageAllocator(uint32_t num_pages) : pages_(num_pages) {
  for (uint32_t i = num_pages; i > 1; --i) clean_.push_back(PageId(i - 1));
}

std::optional<std::vector<PageId>> PageAllocator::TakeKv(uint32_t n) {
  if (n > free_pages()) return std::nullopt;
  std::vector<PageId> out;
  out.reserve(n);
  // Dirty ones first: clean ones are all that loads can use.
  for (std::vector<PageId>* list : {&dirty_, &clean_}) {
    while (out.size() < n && !list->empty()) {
      out.push_back(list->back());
      list->pop_back();
    }
  }
  for (const PageId id : out) {
    pages_[id.value].owner = Owner::kKv;
    pages_[id.value].references = 1;
  }
  kv_ += n;
  return out;
}

std::vector<PageId> PageAllocator::TakeForAdapter(uint32_t n) {
  std::vector<PageId> out;
  while (out.size() < n && !clean_.empty()) {
    out.push_back(clean_.back());
    clean_.pop_back();
    pages_[out.back().value].owner = Owner::kAdapter;
    pages_[out.back().value].references = 1;
  }
  adapter_ += static_cast<uint32_t>(out.size());
  return out;
}

bool PageAllocator::Adopt(std::span<const PageId> pages) {
  std::vector<PageId> sorted(pages.begin(), pages.end());
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const uint32_t id = sorted[i].value;
    if (id == 0 || id >= pages_.size() || pages_[id].owner != Owner::kFree) return false;
    if (i > 0 && sorted[i] == sorted[i - 1]) return false;
  }
  for (const PageId id : sorted) {
    pages_[id.value].owner = Owner::kAdapter;
    pages_[id.value].references = 1;
  }
  std::erase_if(clean_, [&](PageId id) { return pages_[id.value].owner != Owner::kFree; });
  adapter_ += static_cast<uint32_t>(pages.size());
  return true;
}

void PageAllocator::Share(PageId page) {
  Require(pages_[page.value].owner == Owner::kKv, "shared without being KV", page);
  ++pages_[page.value].references;
}

void PageAllocator::ReleaseKv(std::span<const PageId> pages, CommandId last_step) {
  for (const PageId id : pages) {
    Page& page = pages_[id.value];
    Require(page.owner == Owner::kKv && page.references > 0, "released without being KV", id);
    page.last_step = std::max(page.last_step, last_step);
    if (--page.references > 0) continue;
    page.owner = Owner::kFree;
    --kv_;
    (page.last_step > completed_step_ ? dirty_ : clean_).push_back(id);
  }
}

void PageAllocator::ReleaseAdapter(std::span<const PageId> pages) {
  for (const PageId id : pages) {
    Page& page = pages_[id.value];
    Require(page.owner == Owner::kAdapter, "released without being an adapter's", id);
    page.owner = Owner::kFree;
    page.references = 0;
    --adapter_;
    clean_.push_back(id);
  }
}

void PageAllocator::StepCompleted(CommandId step) {
  completed_step_ = std::max(completed_step_, step);
  std::erase_if(dirty_, [&](PageId id) {
    if (pages_[id.value].last_step > completed_step_) return false;
    clean_.push_back(id);
    return true;
  });
}

}  // namespace rootstock
