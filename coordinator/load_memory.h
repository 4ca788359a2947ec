// Memory for adapters on their way into the registry.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rootstock {

// Bytes that all loads together may hold; who finds no room waits, each in turn, for what others
// give back. *Thread-safe.*
class LoadMemory : public std::enable_shared_from_this<LoadMemory> {
 public:
  // What one load holds; given back when it ends. Not thread-safe.
  class Share {
   public:
    Share(std::shared_ptr<LoadMemory> memory, uint64_t bytes)
        : memory_(std::move(memory)), bytes_(bytes) {}
    ~Share() { ShrinkTo(0); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    void ShrinkTo(uint64_t bytes);

   private:
    const std::shared_ptr<LoadMemory> memory_;
    uint64_t bytes_;
  };

  static std::shared_ptr<LoadMemory> Of(uint64_t bytes) {
    return std::shared_ptr<LoadMemory>(new LoadMemory(bytes));
  }
  // May wait. More than there is at all is given when nobody holds any.
  std::shared_ptr<Share> Take(uint64_t bytes);

 private:
  explicit LoadMemory(uint64_t bytes) : total_(bytes) {}

  const uint64_t total_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t used_ = 0;
  uint64_t next_ticket_ = 0, serving_ = 0;
};

}  // namespace rootstock
