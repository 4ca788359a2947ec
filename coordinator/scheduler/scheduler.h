// What the next step runs: a pure function from a view of one group to a decision. No clock,
// network or thread of its own.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"

namespace rootstock {

// Place in line: smaller is older. Requests by arrival, samples of one request by index.
using Order = uint64_t;
constexpr Order kNobody = std::numeric_limits<Order>::max();

// A step's result is one message, capped at 4 MiB: half of it for prompt logprobs, whose chunks are
// cut to fit, half for those of sampled tokens, which the coordinator's limits must keep to.
constexpr uint64_t kMaxPromptResultBytes = 2 << 20;
constexpr uint64_t kMaxSampledResultBytes = 2 << 20;
// Of one token with its `k` top entries.
constexpr uint64_t LogprobBytes(uint64_t k) { return 12 + 12 * k; }

struct ScheduleLimits {
  uint32_t max_num_seqs = 64;
  // A step; of more the others wait for their turn, so that a new one's prompt waits for none of
  // them to end. 0: as many as run.
  uint32_t max_decode_rows = 0;
  uint32_t max_num_batched_tokens = 2048;
  uint32_t page_tokens = 16;
  uint32_t max_new_sequences = 64;                    // a plan: keeps its bytes bounded
  uint64_t max_result_bytes = kMaxPromptResultBytes;  // a step: of prompt logprobs
};

// A sequence that holds a slot.
struct RunningView {
  Order order = 0;
  uint32_t length = 0;       // tokens, those counted that a step in flight will sample
  uint32_t computed = 0;     // of them planned; equal to length: wants no row
  uint32_t pages = 0;        // held
  uint32_t freeable = 0;     // of them read by nobody else
  bool preemptible = true;   // false: ends with what is in flight
  uint64_t token_bytes = 0;  // of the result, a prompt token; 0: no prompt logprobs
  bool solo = false;
  bool barred = false;  // gets no row in this step, and keeps its place in the order of pages
};

// A sequence without slot whose adapter is on the device.
struct WaitingView {
  Order order = 0;
  uint32_t length = 0;
  uint32_t max_length = 0;    // positions it may ever compute
  uint32_t shared_pages = 0;  // full prompt pages of a sibling: already computed
  uint64_t token_bytes = 0;   // as of a running one
  bool solo = false;          // runs with no other sequence in the group
  bool barred = false;        // as of a running one; also in the order of slots
};

// An adapter whose content the group has and whose pages are being collected.
struct LoadView {
  Order order = 0;  // of the oldest request that waits for it
  uint32_t reserved = 0;
  uint32_t missing = 0;
};

// A resident adapter that no running sequence names.
struct IdleAdapterView {
  uint32_t pages = 0;
  Order wanted_by = kNobody;  // the oldest waiting request that names it
};

// What each kind of owner may count on while the other presses: DESIGN §4.
struct PoolFloors {
  uint32_t kv = 0;        // pages that loads leave to KV
  uint32_t adapters = 0;  // pages of adapters that KV evicts none below
};

struct SchedulerView {
  ScheduleLimits limits;
  PoolFloors floors;
  uint32_t usable_pages = 0;
  uint32_t adapter_pages = 0;                  // held: resident, being loaded, dropped or reserved
  std::vector<RunningView> running;            // oldest first
  std::vector<WaitingView> waiting;            // oldest first; a bounded window
  std::vector<LoadView> loads;                 // oldest first
  std::vector<IdleAdapterView> idle_adapters;  // in the order in which they are to leave
  uint32_t free_pages = 0;                     // for Steps
  uint32_t free_for_loads = 0;                 // of them
  uint32_t pages_coming = 0;                   // of adapters that are being dropped
  uint32_t spare_pages = 0;                    // to be free, or coming, for loads to come
  uint32_t free_slots = 0;
  Order decode_turn = 0;  // of the last step sent: `Decision::decode_turn`
};

struct RowDecision {
  bool admit = false;  // index is into waiting, else into running
  uint32_t index = 0;
  uint32_t query_len = 0;
  uint32_t new_pages = 0;  // to take for it
};

struct Decision {
  // To be carried out in this order.
  std::vector<uint32_t> preempt;    // running
  std::vector<uint32_t> unreserve;  // loads whose reserved pages go back
  std::vector<uint32_t> evict;      // idle adapters
  uint32_t evict_ahead = 0;         // of them, the last: for spare_pages
  std::vector<RowDecision> rows;    // decodes, then chunks, then admissions
  struct Reserve {
    uint32_t load = 0;
    uint32_t pages = 0;
  };
  std::vector<Reserve> reserve;
  Order decode_turn = 0;  // the last of the decodes whose turn it was; the next step begins behind
};

// Tokens go to decodes first, of more than `max_decode_rows` in turn (who sits out is as barred),
// then to prompts in chunks; those of prompts with logprobs are cut to `max_result_bytes`, the
// first one's never below a token. Pages go out by order: to running
// sequences, loads and admissions alike. Who lacks pages may take those reserved for younger
// loads and evict idle adapters that nobody older waits for; a running sequence may also preempt
// younger ones, or gives up its own. An admission leaves a page for each that runs. A waiting
// sequence without pages stops the admissions behind it; one whose adapter is not resident is not
// in `waiting` and stops nobody. What a barred one would take is set aside for it, but for tokens.
// At last idle adapters that nobody waits for leave until `spare_pages` are free or on their way.
// Floors bind all but the oldest in the view, so that it always gets on: KV evicts no adapter when
// adapters would hold less than theirs, a load takes no page when KV would be left less than its.
Decision Schedule(const SchedulerView& view);

// Whether a sequence that may compute `positions` positions can ever run in a group of `pages`
// usable pages beside its adapter. INVALID_ARGUMENT/too_large with the arithmetic.
// `pinned`: of `pages`, those of other adapters that never leave.
absl::Status CheckFits(uint32_t positions, uint32_t page_tokens, uint32_t adapter_pages,
                       uint32_t pages, uint32_t pinned = 0);

constexpr uint32_t PagesFor(uint32_t positions, uint32_t page_tokens) {
  return (positions + page_tokens - 1) / page_tokens;
}

}  // namespace rootstock
