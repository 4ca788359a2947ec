#include "coordinator/load_memory.h"

#include <algorithm>
#include <utility>

namespace rootstock {

std::shared_ptr<LoadMemory::Share> LoadMemory::Take(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] {
    return serving_ == ticket && (used_ == 0 || bytes <= total_ - std::min(total_, used_));
  });
  ++serving_;
  used_ += bytes;
  lock.unlock();
  changed_.notify_all();
  return std::make_shared<Share>(shared_from_this(), bytes);
}

void LoadMemory::Share::ShrinkTo(uint64_t bytes) {
  const uint64_t freed = bytes_ - std::min(bytes_, bytes);
  bytes_ -= freed;
  {
    const std::lock_guard lock(memory_->mutex_);
    memory_->used_ -= freed;
  }
  memory_->changed_.notify_all();
}

}  // namespace rootstock
