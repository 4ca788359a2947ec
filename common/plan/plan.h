// What the coordinator orders and a group answers: PROTOCOL.md §2–§4, without the wire format.
// A plan is a delta: it carries what the group can't know, nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/digest.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/layout/adapter_layout.h"

namespace rootstock {

struct Epoch {
  uint64_t incarnation = 0;  // of the coordinator: durable, raised before it listens
  uint64_t attach = 0;
  friend auto operator<=>(const Epoch&, const Epoch&) = default;
};

// Resolved: no optional fields. Applied in the order penalties, bias, temperature, top-k, top-p,
// min-p. Repetition penalty counts prompt and output tokens, the other two output tokens only.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: all
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t logprobs = -1;         // top entries a sampled token; -1: none at all
  int32_t prompt_logprobs = -1;  // same for prompt tokens
  uint32_t min_tokens = 0;       // output tokens before any of banned_until_min may come
  std::vector<int32_t> banned_until_min;
};

// Adapters of the positions [begin, end): summed in list order. No adapters: the base.
struct AdapterUse {
  Digest adapter;
  float scale = 1.0f;  // multiplies the adapter's own scales
  friend bool operator==(const AdapterUse&, const AdapterUse&) = default;
};
struct AdapterSpan {
  uint32_t begin = 0;
  uint32_t end = 0;  // 0: open
  std::vector<AdapterUse> adapters;
  friend bool operator==(const AdapterSpan&, const AdapterSpan&) = default;
};

// Complete: serves admission, replay, preemption and hand-off. Its tokens come with its rows;
// those at positions ≥ num_prompt_tokens are outputs received before.
struct NewSequence {
  SequenceSlot slot;
  uint32_t num_prompt_tokens = 0;
  uint32_t num_tokens = 0;
  SamplingParams sampling;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  std::vector<AdapterSpan> spans;
  // Tokens before its first row's position, which shared pages hold. Needed only when a penalty
  // counts them: all for the repetition penalty, outputs for the others; else may stay empty.
  std::vector<int32_t> cached_tokens;
};

enum class RowOutput : uint8_t {
  kNone = 0,            // an inner chunk of a prompt
  kToken = 1,           // sample after the last token of the row
  kPromptLogprobs = 2,  // of the row's tokens; no sampling
  kTokenAndPromptLogprobs = 3,
};

struct PlanRow {
  SequenceSlot slot;
  uint32_t query_len = 1;       // maximum number of tokens this row runs
  uint32_t position = 0;        // upper bound of its first token's position
  std::vector<int32_t> tokens;  // query_len of them; empty: the token sampled last
  std::vector<PageId> pages;    // appended to the slot's page table
  RowOutput output = RowOutput::kToken;
};

struct StepPlan {
  std::vector<NewSequence> new_sequences;
  std::vector<PlanRow> rows;  // empty: a tick
  // Run without graphs, layer by layer behind the copy of an adapter whose Load is sent and has not
  // completed. Only where the group said loads_by_layer, and only after a Prefetch to_host of it.
  bool eager = false;
};

// Where content, or an image of it, lies. Nodes own host and disk, within budgets of theirs.
enum class Tier : uint8_t { kDevice = 1, kHost = 2, kDisk = 4 };
struct Tiers {
  uint8_t bits = 0;
  constexpr Tiers() = default;
  constexpr Tiers(Tier tier) : bits(static_cast<uint8_t>(tier)) {}  // NOLINT: a set of one
  constexpr explicit Tiers(uint8_t b) : bits(b) {}
  constexpr bool has(Tier tier) const { return (bits & static_cast<uint8_t>(tier)) != 0; }
  friend constexpr Tiers operator|(Tiers a, Tiers b) {
    return Tiers(static_cast<uint8_t>(a.bits | b.bits));
  }
  friend constexpr bool operator==(Tiers, Tiers) = default;
};
constexpr Tiers operator|(Tier a, Tier b) { return Tiers(a) | Tiers(b); }
// "device", "host", "disk".
constexpr const char* TierName(Tier tier) {
  return tier == Tier::kDevice ? "device" : tier == Tier::kHost ? "host" : "disk";
}
constexpr Tiers kAllTiers = Tier::kDevice | Tier::kHost | Tier::kDisk;

// Content by digest, never a path. Runs beside Steps; completes when the pages are written on every
// rank. To be sent when a Prefetch of it completed: a rank whose host copy is gone makes it again
// from disk.
struct LoadAdapter {
  Digest digest;
  uint64_t layout_id = 0;
  LoraSharding sharding = LoraSharding::kReplicated;
  std::vector<PageId> pages;
};
// The slots may be given again afterwards. One that holds no sequence is ignored.
struct ReleaseSlots {
  std::vector<SequenceSlot> slots;
};
// Verified content on every node of the group when it completes, and to_host: on every rank a
// pinned host copy in the layout's pages; takes no step time.
struct PrefetchAdapter {
  Digest digest;
  uint64_t layout_id = 0;
  LoraSharding sharding = LoraSharding::kReplicated;
  bool to_host = false;
  uint64_t bytes = 0;  // of the content; 0: not said
};
// The group forgets the adapter on these tiers; device pages are free when this completes. What is
// not there is fine.
struct DropAdapter {
  Digest digest;
  Tiers tiers = Tier::kDevice;
};
// No cache of the group's nodes may evict it from these tiers (host, disk) until it is unpinned, or
// the group attaches again.
struct PinAdapter {
  Digest digest;
  Tiers tiers;
  bool pinned = true;
};

struct Command {
  CommandId id;
  Epoch epoch;
  std::variant<StepPlan, LoadAdapter, ReleaseSlots, PrefetchAdapter, DropAdapter, PinAdapter> kind;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;                            // 1: the likeliest
  std::vector<std::pair<int32_t, float>> top;  // descending
};

struct RowResult {
  SequenceSlot slot;
  std::vector<int32_t> tokens;                // sampled; empty when the row asked for none
  std::vector<TokenLogprob> logprobs;         // one a token, when asked for
  std::vector<TokenLogprob> prompt_logprobs;  // of this row's prompt tokens that have a predecessor
  bool nonfinite = false;                     // logits held NaN or infinity: the sequence must fail
};

struct StepResult {
  std::vector<RowResult> rows;  // of rows that asked for an output, in plan order
  uint64_t duration_us = 0;
  uint32_t distinct_adapters = 0;
};

// Whence a Prefetch had its content; later ones are slower.
enum class FetchSource : uint8_t { kNone = 0, kHost = 1, kDisk = 2, kCoordinator = 3, kObject = 4 };

// Over all ranks (device, host) and nodes (disk).
struct TierBytes {
  uint64_t device = 0, host = 0, disk = 0;
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

// On the host tier when every rank holds a copy, on the disk tier when every node does.
struct CachedAdapter {
  Digest digest;
  Tier tier = Tier::kDisk;
  uint64_t bytes = 0;  // over all of them
  friend bool operator==(const CachedAdapter&, const CachedAdapter&) = default;
};
struct TierChange {
  CachedAdapter adapter;
  bool present = false;  // it came, or went
  friend bool operator==(const TierChange&, const TierChange&) = default;
};

// A command completes once, with the conjunction of all tp_ranks' outcomes.
struct Completion {
  CommandId id;
  absl::Status outcome;
  StepResult step;                          // filled for a StepPlan
  FetchSource source = FetchSource::kNone;  // for a PrefetchAdapter: the slowest over ranks
  uint64_t bytes = 0;                       // of content, for a PrefetchAdapter
  TierBytes freed;                          // for a DropAdapter
  // What came to and left the host and disk tiers, in order; on completions of any kind.
  std::vector<TierChange> tier_changes;
};

// What a group is, told once a stream.
struct RankInfo {
  std::string host;
  std::string device;  // GPU UUID; "cpu"
  std::string build;
  uint32_t pid = 0;
  uint32_t metrics_port = 0;
};
struct GroupInfo {
  std::string name;
  std::string pool;  // "unified"
  std::string build;
  uint32_t tp_size = 0;
  Digest model_fingerprint;
  std::vector<RankInfo> ranks;
};
// Limits that the coordinator sends at Attach; vLLM's meanings.
struct GroupLimits {
  uint32_t max_model_len = 0;
  uint32_t max_num_seqs = 64;
  uint32_t max_num_batched_tokens = 2048;
  uint32_t max_logprobs = 20;
};
struct ResidentAdapter {
  Digest digest;
  uint64_t layout_id = 0;
  std::vector<PageId> pages;
};
// What a group holds after an Attach, with every rank idle. All other pages are free.
struct AttachReport {
  Epoch epoch;
  PageGeometry geometry;
  DType compute_dtype = DType::kF32;
  std::vector<ResidentAdapter> adapters;
  bool loads_by_layer = false;  // see StepPlan::eager
  std::vector<CachedAdapter> cached;
};

}  // namespace rootstock
