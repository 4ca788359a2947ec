#include "coordinator/engine/residency/fetch_window.h"

namespace rootstock {

void FetchWindow::Queue(ResidencyEntry& entry) {
  entry.line_key = entry.line();
  line_.emplace(entry.line_key, &entry);
}

void FetchWindow::Unqueue(ResidencyEntry& entry) { line_.erase({entry.line_key, &entry}); }

void FetchWindow::Requeue(ResidencyEntry& entry) {
  Unqueue(entry);
  Queue(entry);
}

ResidencyEntry* FetchWindow::Next() {
  if (line_.empty()) return nullptr;
  ResidencyEntry* entry = line_.begin()->second;
  if (bytes_ > 0 && bytes_ + entry->facts.bytes > max_bytes_) return nullptr;
  line_.erase(line_.begin());
  return entry;
}

void FetchWindow::Started(ResidencyEntry& entry, absl::Time now) {
  entry.slow = false;
  entry.started = now;
  running_.emplace(now, &entry);
  bytes_ += entry.facts.bytes;
}

void FetchWindow::Bypass(ResidencyEntry& entry, absl::Time now) {
  entry.slow = true;
  entry.started = now;
}

void FetchWindow::Arrived(ResidencyEntry& entry) {
  running_.erase({entry.started, &entry});
  if (entry.slow) bytes_ += entry.facts.bytes;
  entry.slow = false;
}

void FetchWindow::Left(ResidencyEntry& entry) {
  running_.erase({entry.started, &entry});
  if (!entry.slow) bytes_ -= entry.facts.bytes;
  entry.slow = false;
}

std::vector<ResidencyEntry*> FetchWindow::FindSlow(absl::Time now) {
  std::vector<ResidencyEntry*> out;
  while (!running_.empty() && now - running_.begin()->first >= kSlowFetch) {
    ResidencyEntry* entry = running_.begin()->second;
    running_.erase(running_.begin());
    entry->slow = true;
    bytes_ -= entry->facts.bytes;
    out.push_back(entry);
  }
  return out;
}

}  // namespace rootstock
