#include "worker/runtime/batch_plan.h"

#include <algorithm>
#include <unordered_set>

namespace rootstock {
namespace {

// Tokens [first, first + count) of a row join the batch.
void AddPiece(const StepRow& row, uint32_t row_index, uint32_t first, uint32_t count,
              const AdapterTable& adapters, uint32_t page_tokens, StepBatch& batch) {
  ForwardBatch& out = batch.forward;
  const int begin = static_cast<int>(out.token_ids.size());
  const uint32_t position = row.plan->position + first;
  const uint32_t end = position + count;
  for (uint32_t i = first; i < first + count; ++i) {
    if (row.wants_logits(i)) {
      out.logit_tokens.push_back(static_cast<int32_t>(out.token_ids.size()));
      batch.outputs.push_back({row_index, i});
    }
    out.token_ids.push_back(row.tokens[i]);
    out.positions.push_back(static_cast<int32_t>(row.plan->position + i));
  }
  const std::span<const uint32_t> pages(row.sequence->page_table);
  out.rows.push_back({begin, static_cast<int>(count), static_cast<int>(position),
                      pages.first((end + page_tokens - 1) / page_tokens)});
  for (const AdapterSpan& span : row.sequence->spec.spans) {
    const uint32_t from = std::max(span.begin, position);
    const uint32_t to = span.end == 0 ? end : std::min(span.end, end);
    if (from >= to) continue;
    for (const AdapterUse& use : span.adapters) {
      out.segments.push_back({begin + static_cast<int>(from - position),
                              begin + static_cast<int>(to - position), adapters.Find(use.adapter),
                              use.scale});
    }
  }
}

}  // namespace

std::vector<StepBatch> CutIntoBatches(const std::vector<StepRow>& rows,
                                      const AdapterTable& adapters, uint32_t page_tokens,
                                      int max_outputs) {
  std::vector<StepBatch> batches(1);
  int room = max_outputs;
  for (uint32_t r = 0; r < rows.size(); ++r) {
    const StepRow& row = rows[r];
    uint32_t first = 0;
    for (uint32_t i = 0; i < row.plan->query_len; ++i) {
      if (!row.wants_logits(i)) continue;
      if (room == 0) {
        if (i > first) {
          AddPiece(row, r, first, i - first, adapters, page_tokens, batches.back());
        }
        first = i;
        batches.emplace_back();
        room = max_outputs;
      }
      --room;
    }
    AddPiece(row, r, first, row.plan->query_len - first, adapters, page_tokens, batches.back());
  }
  return batches;
}

uint32_t CountDistinctAdapters(const std::vector<StepBatch>& batches) {
  std::unordered_set<const DeviceAdapter*> distinct;
  for (const StepBatch& batch : batches) {
    for (const LoraSegment& segment : batch.forward.segments) distinct.insert(segment.adapter);
  }
  return static_cast<uint32_t>(distinct.size());
}

}  // namespace rootstock
