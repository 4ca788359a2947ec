// What one sequence holds on its group: a place in line, or a slot with pages and an adapter.
#include <algorithm>
#include <utility>

#include "coordinator/engine/group_engine.h"

namespace rootstock {
namespace {

const Digest* AdapterOf(const Sequence& s) {
  return s.request->resolved.adapter ? &s.request->resolved.adapter->digest : nullptr;
}

}  // namespace

void GroupEngine::Enqueue(Sequence& sequence) {
  const Digest* adapter = AdapterOf(sequence);
  if (adapter != nullptr) adapters_.Want(*adapter, sequence.request->footprint, sequence.order());
  if (adapter == nullptr || adapters_.IsUsable(*adapter)) {
    ready_[sequence.order()] = &sequence;
  } else {
    Park(sequence);
  }
}

void GroupEngine::Unqueue(Sequence& sequence) {
  const Order order = sequence.order();
  if (WaitingAt(order) == nullptr) return;
  ready_.erase(order);
  Unpark(sequence);
  if (const Digest* adapter = AdapterOf(sequence)) adapters_.Unwant(*adapter, order);
}

void GroupEngine::Admit(Sequence& sequence, const RowDecision& row) {
  LiveRequest& request = *sequence.request;
  if (const Digest* adapter = AdapterOf(sequence)) adapters_.Use(*adapter);
  Unqueue(sequence);
  sequence.running = true;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.pages = request.prompt_pages;
  for (const PageId page : sequence.pages) pages_.Share(page);
  const std::vector<PageId> own = *pages_.TakeKv(row.new_pages);
  sequence.computed =
      static_cast<uint32_t>(sequence.pages.size()) * config_.report.geometry.page_tokens;
  config_.metrics->prompt_tokens_cached.Add(sequence.computed);
  sequence.pages.insert(sequence.pages.end(), own.begin(), own.end());
  const auto at =
      std::upper_bound(running_.begin(), running_.end(), sequence.order(),
                       [](Order order, const Sequence* other) { return order < other->order(); });
  running_.insert(at, &sequence);
  if (!request.admitted) {
    request.admitted = true;
    config_.metrics->Queued(config_.clock() - request.arrived, request.load_wait);
    callbacks_.admitted(request);
  }
}

// Its pages are free for the next Step at once, for a Load when the last Step that names them has
// completed. Rows in flight are answered into the sequence all the same.
void GroupEngine::StopRunning(Sequence& sequence) {
  pages_.ReleaseKv(sequence.pages, sequence.last_step);
  if (const Digest* adapter = AdapterOf(sequence)) adapters_.Unuse(*adapter, sequence.last_step);
  if (sequence.announced) {
    to_release_.push_back(sequence.slot);
  } else {
    free_slots_.push_back(sequence.slot);
  }
  std::erase(running_, &sequence);
  sequence.running = false;
  sequence.announced = false;
  sequence.sampled = false;
  sequence.prompt_confirmed = false;
  sequence.computed = 0;
  sequence.pages_sent = 0;
  sequence.pages.clear();
  if (!sequence.prompt_logprobs_sent) sequence.prompt_logprobs.clear();
}

void GroupEngine::FinishSequence(Sequence& sequence) {
  if (sequence.finished) return;
  LiveRequest& request = *sequence.request;
  if (sequence.running) {
    StopRunning(sequence);
  } else {
    Unqueue(sequence);
  }
  sequence.finished = true;
  if (request.all_finished()) CloseRequest(request, absl::OkStatus());
}

// Full prompt pages of a sample whose prompt a result has confirmed, for those not yet started.
void GroupEngine::KeepPrompt(LiveRequest& request) {
  if (!request.shares_prompt() || !request.prompt_pages.empty()) return;
  const Sequence* donor = nullptr;
  bool wanted = false;
  for (const Sequence& s : request.sequences) {
    if (s.running && s.prompt_confirmed) donor = &s;
    wanted |= !s.running && !s.finished;
  }
  // A hit ends at the last page boundary before the last prompt token: that one is run anyway.
  const uint32_t full =
      (request.resolved.prompt_tokens() - 1) / config_.report.geometry.page_tokens;
  if (donor == nullptr || !wanted || full == 0) return;
  request.prompt_pages.assign(donor->pages.begin(), donor->pages.begin() + full);
  for (const PageId page : request.prompt_pages) pages_.Share(page);
  keeping_prompts_.insert(&request);
}

void GroupEngine::ReleasePrompt(LiveRequest& request) {
  if (keeping_prompts_.erase(&request) == 0) return;
  pages_.ReleaseKv(request.prompt_pages, CommandId(0));
  request.prompt_pages.clear();
}

// Samples wait for the first one's prompt, unless there is nothing to share.
bool GroupEngine::MayStart(const Sequence& sequence) const {
  // Its next token may be on the way: only then is known where it continues.
  if (sequence.rows_in_flight > 0) return false;
  const LiveRequest& request = *sequence.request;
  if (!request.shares_prompt() || !request.prompt_pages.empty()) return true;
  if (request.resolved.prompt_tokens() <= config_.report.geometry.page_tokens) return true;
  for (const Sequence& other : request.sequences) {
    if (other.running && !other.prompt_confirmed) return false;
  }
  return true;
}

}  // namespace rootstock
