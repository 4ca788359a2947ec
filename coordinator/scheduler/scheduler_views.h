// Views of a group for tests: four tokens a page, a budget of 16 tokens, four sequences.
#pragma once

#include <ostream>
#include <vector>

#include "coordinator/scheduler/scheduler.h"

namespace rootstock {

inline SchedulerView View(uint32_t free_pages) {
  SchedulerView view;
  view.limits = {.max_num_seqs = 4, .max_num_batched_tokens = 16, .page_tokens = 4};
  view.free_pages = free_pages;
  view.free_for_loads = free_pages;
  view.free_slots = 4;
  view.usable_pages = 1000;
  view.adapter_pages = 500;
  return view;
}

inline RunningView Decoding(Order order, uint32_t length) {
  const uint32_t pages = PagesFor(length - 1, 4);
  return {
      .order = order, .length = length, .computed = length - 1, .pages = pages, .freeable = pages};
}
inline RunningView Prefilling(Order order, uint32_t length, uint32_t computed) {
  const uint32_t pages = PagesFor(length, 4);
  return {
      .order = order, .length = length, .computed = computed, .pages = pages, .freeable = pages};
}
inline WaitingView Waiting(Order order, uint32_t length) {
  return {.order = order, .length = length, .max_length = length + 100};
}

struct Row {
  bool admit;
  uint32_t index, query_len, new_pages;
  friend bool operator==(const Row&, const Row&) = default;
};
inline std::ostream& operator<<(std::ostream& out, const Row& r) {
  return out << (r.admit ? "admit " : "run ") << r.index << " len " << r.query_len << " pages "
             << r.new_pages;
}
inline std::vector<Row> Rows(const Decision& d) {
  std::vector<Row> out;
  for (const RowDecision& r : d.rows) out.push_back({r.admit, r.index, r.query_len, r.new_pages});
  return out;
}

}  // namespace rootstock
