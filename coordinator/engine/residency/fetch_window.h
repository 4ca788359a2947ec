// Which fetches of a group are sent: in queue order, within a window of bytes.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/residency/entry.h"

namespace rootstock {

// What is being fetched or is fetched and waits for pages may hold `max_bytes`; one more goes out
// whenever nothing does, whatever its size. A fetch that takes longer than kSlowFetch no longer
// counts: it holds up nobody. Entries are the owner's. *Engine thread only.*
class FetchWindow {
 public:
  static constexpr absl::Duration kSlowFetch = absl::Seconds(1);

  explicit FetchWindow(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void Queue(ResidencyEntry& entry);
  void Unqueue(ResidencyEntry& entry);
  // Its place in line changed.
  void Requeue(ResidencyEntry& entry);
  // The oldest one that may be fetched now, taken out of line; null when none may.
  ResidencyEntry* Next();
  // It is being fetched, and fills the window with its bytes until Left.
  void Started(ResidencyEntry& entry, absl::Time now);
  // It needs no fetch, and never counts.
  void Bypass(ResidencyEntry& entry, absl::Time now);
  // Content has come: it counts while it waits, however slow it was.
  void Arrived(ResidencyEntry& entry);
  // Failed, unwanted, or its pages are found.
  void Left(ResidencyEntry& entry);
  // Those whose fetches have become slow since the last call.
  std::vector<ResidencyEntry*> FindSlow(absl::Time now);

  uint64_t bytes() const { return bytes_; }
  size_t queued() const { return line_.size(); }

 private:
  const uint64_t max_bytes_;
  std::set<std::pair<Order, ResidencyEntry*>> line_;
  std::set<std::pair<absl::Time, ResidencyEntry*>> running_;  // not known as slow
  uint64_t bytes_ = 0;                                        // of those that count
};

}  // namespace rootstock
