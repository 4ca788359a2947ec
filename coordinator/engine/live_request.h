// A request on its way through the engine's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/engine/queue_bound.h"
#include "coordinator/engine/residency/group_adapters.h"
#include "coordinator/request/request.h"
#include "coordinator/scheduler/scheduler.h"

namespace rootstock {

struct LiveRequest;

// One sample. What a group holds for it is reset whenever it stops running there; `outputs` and
// what follows goes with it from group to group.
struct Sequence {
  LiveRequest* request = nullptr;
  uint32_t index = 0;

  std::vector<int32_t> outputs;  // received, up to a stop
  bool finished = false;
  uint32_t deaths = 0;                        // groups that were lost while it ran on them
  std::vector<TokenLogprob> prompt_logprobs;  // received so far, sample 0 only
  bool prompt_logprobs_sent = false;

  // On a group, while it holds a slot.
  bool running = false;
  SequenceSlot slot;
  bool announced = false;   // its NewSequence was sent
  bool sampled = false;     // the device holds the token sampled last
  uint32_t computed = 0;    // positions that sent rows cover
  uint32_t pages_sent = 0;  // of `pages`
  std::vector<PageId> pages;
  CommandId last_step{0};         // the last one sent that names it
  bool prompt_confirmed = false;  // a result came that needed the whole prompt
  // Of rows not answered yet; also after it stopped running.
  uint32_t rows_in_flight = 0;
  uint32_t samples_in_flight = 0;

  Order order() const;
  // Tokens that are known, or will be when the steps in flight are answered.
  uint32_t length() const;
  int32_t token_at(uint32_t position) const;
  bool wants_rows() const;
  // What a result says of one more token of its prompt; 0: no prompt logprobs are wanted of it.
  uint64_t prompt_token_bytes() const;
};

// Where a request's adapter was when the request came to its group.
enum class AdapterHeat {
  kBase,  // it has none
  kHot,   // on the device
  kWarm,  // on the nodes' hosts
  kCold,
};

enum class AbortCause { kNone, kCancelled, kDeadline, kDraining };

// Held by one thread at a time (the router, a group engine): that one owns everything but the
// atomics, which any thread may set before it pokes the owner.
struct LiveRequest {
  LiveRequest(RequestNumber number, ResolvedRequest resolved);

  const RequestNumber number;
  ResolvedRequest resolved;
  std::shared_ptr<TokenSink> sink;
  std::shared_ptr<QueuePlace> place;             // until a sample has run once
  absl::Time arrived;                            // engine clock
  absl::Time deadline = absl::InfiniteFuture();  // engine clock
  std::vector<Sequence> sequences;
  bool admitted = false;  // a sample has run once
  AdapterHeat heat = AdapterHeat::kBase;
  bool looked_up = false;  // counted in adapter_lookup_total
  uint32_t parked = 0;     // samples that wait for the adapter
  absl::Time parked_since;
  absl::Duration load_wait;  // time spent so
  bool tokens_seen = false;
  bool closed = false;
  bool freeing = false;        // cancelled, and a step in flight names it
  AdapterFootprint footprint;  // on the present group
  // Full prompt pages kept for samples that have not started on the present group.
  std::vector<PageId> prompt_pages;

  std::atomic<AbortCause> abort{AbortCause::kNone};
  absl::Time aborted_at;                   // engine clock; set before `abort`
  std::vector<std::atomic<bool>> stopped;  // a sample: a stop string ended it

  bool all_finished() const;
  // Samples share full prompt pages. Not with a repetition penalty: its counts include the
  // prompt, and a sample whose first pages are shared never sends those tokens.
  bool shares_prompt() const;
  bool rows_in_flight() const;
};

using RequestPtr = std::shared_ptr<LiveRequest>;

// CANCELLED, DEADLINE_EXCEEDED or UNAVAILABLE / draining, as `abort` says.
absl::Status AbortStatus(const LiveRequest& request);

constexpr Order kOrdersPerRequest = 128;  // samples

}  // namespace rootstock
