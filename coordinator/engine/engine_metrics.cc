#include "coordinator/engine/engine_metrics.h"

#include <vector>

#include "common/base/status.h"
#include "coordinator/engine/live_request.h"

namespace rootstock {
namespace {

constexpr size_t kMaxGroups = 64;
const std::vector<double> kTokenSeconds = {.005, .01, .015, .02, .025, .03, .04, .05,
                                           .075, .1,  .15,  .2,  .3,   .5,  1,   2.5};
const std::vector<std::string> kGroupStates = {"forming", "loading", "ready", "draining", "broken"};
const std::vector<std::string> kReformCauses = {"rank_exit", "rank_hang", "nccl_error", "xid",
                                                "operator"};

Label Class() { return {"tenant_class", {"default"}}; }
Label Group() { return {"group", {}, kMaxGroups}; }

// requests_total's closed list of outcomes. What we lost or can't read is no fault of the client,
// whatever the code says.
const char* Outcome(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  const Reason reason = detail ? detail->reason : Reason::kInternal;
  const char* internal = reason == Reason::kWorkerLost ? "worker_lost" : "internal_error";
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kCancelled:
      return "client_cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case absl::StatusCode::kUnavailable:
      return reason == Reason::kDraining ? "overloaded" : internal;
    case absl::StatusCode::kResourceExhausted:
      return reason == Reason::kIoError || reason == Reason::kNoSpace ? internal : "overloaded";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return reason == Reason::kIoError ? internal : "client_error";
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "unauthenticated";
    default:
      return internal;
  }
}

const char* LoadResult(const absl::Status& outcome) {
  if (outcome.ok()) return "ok";
  const auto detail = GetErrorDetail(outcome);
  if (outcome.code() == absl::StatusCode::kDeadlineExceeded) return "timeout";
  if (outcome.code() == absl::StatusCode::kResourceExhausted ||
      (detail && detail->reason == Reason::kTooLarge)) {
    return "no_space";
  }
  const bool corrupt = outcome.code() == absl::StatusCode::kDataLoss ||
                       (detail && detail->reason == Reason::kDigestMismatch);
  return corrupt ? "corrupt" : "io_error";
}

}  // namespace

EngineMetrics::EngineMetrics(Metrics& metrics) {
  MakeRequests(metrics);
  MakeTokens(metrics);
  MakeLosses(metrics);
  MakeAdapters(metrics);
  MakeGroups(metrics);
}

void EngineMetrics::MakeRequests(Metrics& m) {
  requests_ =
      m.MakeCounter("requests_total", "Requests ended",
                    {Class(),
                     {"operation", {"completion"}},
                     {"outcome",
                      {"ok", "client_error", "unauthenticated", "quota_exceeded", "overloaded",
                       "deadline_exceeded", "client_cancelled", "worker_lost", "internal_error"}}});
  shed_ = m.MakeCounter(
      "shed_total", "Requests refused for want of room",
      {Class(),
       {"reason",
        {"queue_full", "deadline_unreachable", "tenant_limit", "kv_pressure", "draining"}}});
  ttft_ = m.MakeHistogram("time_to_first_token_seconds", "Arrival to first token",
                          {.01, .025, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 60},
                          {Class(), {"adapter_state", {"base", "hot", "warm", "cold"}}});
  tpot = m.MakeHistogram("time_per_output_token_seconds",
                         "Mean of a request, after its first token", kTokenSeconds, {Class()})
             .At("default");
  itl = m.MakeHistogram("inter_token_latency_seconds", "Gap between two tokens of a sample",
                        kTokenSeconds)
            .At();
  e2e = m.MakeHistogram("request_duration_seconds", "Arrival to end",
                        {.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600}, {Class()})
            .At("default");
  const std::vector<double> waits = {.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30};
  queue_wait_ =
      m.MakeHistogram("queue_wait_seconds", "Arrival to first row", waits, {Class()}).At("default");
  const auto reasons = m.MakeHistogram("queue_wait_reason_seconds", "Queue wait by what it was for",
                                       waits, {{"reason", {"load", "pages", "fairness"}}});
  wait_for_load_ = reasons.At("load");
  wait_for_pages_ = reasons.At("pages");
}

void EngineMetrics::MakeTokens(Metrics& m) {
  prompt_tokens =
      m.MakeHistogram("request_prompt_tokens", "Prompt length", PowersOfTwo(131072)).At();
  output_tokens =
      m.MakeHistogram("request_output_tokens", "Output length, all samples", PowersOfTwo(131072))
          .At();
  const auto prompts =
      m.MakeCounter("prompt_tokens_total", "Prompt tokens by where their KV is from",
                    {Class(), {"source", {"computed", "cached"}}});
  prompt_tokens_computed = prompts.At("default", "computed");
  prompt_tokens_cached = prompts.At("default", "cached");
  output_tokens_total =
      m.MakeCounter("output_tokens_total", "Tokens delivered", {Class()}).At("default");
  stream_backpressure_seconds =
      m.MakeCounter("stream_backpressure_seconds_total",
                    "Time that streams had tokens ready and their clients did not take them")
          .At();
  queue_requests =
      m.MakeGauge("queue_requests", "Requests that have not run yet", {Class()}).At("default");
  running_requests =
      m.MakeGauge("running_requests", "Requests that have begun to run", {Class()}).At("default");
  queue_tokens =
      m.MakeGauge("queue_tokens", "Prompt tokens of requests that have not run yet", {Class()})
          .At("default");
}

// What was begun and not brought to its end in one go.
void EngineMetrics::MakeLosses(Metrics& m) {
  preemptions = m.MakeCounter("preemptions_total", "Sequences that gave up their pages",
                              {{"reason", {"pages", "fairness"}}})
                    .At("pages");
  const Label reason = {"reason", {"rank_lost", "group_lost", "drain"}};
  replays =
      m.MakeCounter("replays_total", "Sequences replayed after their group was lost", {reason})
          .At("group_lost");
  retries_ = m.MakeCounter("retries_total", "Requests that a group gave back, to be placed again",
                           {reason});
  replayed_tokens =
      m.MakeCounter("replayed_tokens_total", "Tokens computed again for a replay").At();
  disconnects_ =
      m.MakeCounter("client_disconnects_total", "Requests cancelled, by how far they were",
                    {{"phase", {"queued", "prefill", "decode"}}});
  cancel_latency = m.MakeHistogram("cancel_latency_seconds", "Cancel to the request's pages free",
                                   {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5})
                       .At();
}

void EngineMetrics::MakeAdapters(Metrics& m) {
  evictions_ = m.MakeCounter(
      "adapter_evictions_total", "Adapters that left a tier",
      {{"tier", {"device", "host", "disk"}}, {"reason", {"pressure", "quota", "unpin", "retire"}}});
  const Label source = {"source", {"host", "disk", "coordinator", "object"}};
  loads_ =
      m.MakeCounter("adapter_loads_total", "Adapter loads ended",
                    {source, {"result", {"ok", "io_error", "corrupt", "timeout", "no_space"}}});
  load_seconds_ = m.MakeHistogram(
      "adapter_load_duration_seconds", "Fetch begun to adapter on the device",
      {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, {source});
  lookups_ = m.MakeCounter(
      "adapter_lookup_total", "Where a request's adapter was",
      {{"result",
        {"device_hit", "host_hit", "disk_hit", "coordinator_fetch", "object_fetch", "unknown"}}});
}

void EngineMetrics::MakeGroups(Metrics& m) {
  const auto pages_evicted = m.MakeCounter(
      "page_evictions_total", "Pages taken from what they held",
      {{"owner", {"kv", "adapter"}}, {"reason", {"pressure", "quota", "unload", "retire"}}});
  kv_pages_pressure = pages_evicted.At("kv", "pressure");
  adapter_pages_pressure = pages_evicted.At("adapter", "pressure");
  adapter_pages_unload = pages_evicted.At("adapter", "unload");
  adapter_pages_retire = pages_evicted.At("adapter", "retire");
  pages_ =
      m.MakeGauge("pages", "Pages of a group", {Group(), {"owner", {"kv", "adapter", "free"}}});
  const Label tier = {"tier", {"device", "host", "disk", "object"}};
  residents_ = m.MakeGauge("adapters_resident", "Adapters on a tier", {Group(), tier});
  resident_bytes_ = m.MakeGauge("adapter_resident_bytes",
                                "Their bytes: device on each tp_rank, host and disk on all nodes",
                                {Group(), tier});
  object = {residents_.At("", "object"), resident_bytes_.At("", "object")};
  group_state_ = m.MakeGauge("group_state", "1 for the state a group is in",
                             {Group(), {"state", kGroupStates}});
  group_epoch_ = m.MakeGauge("group_epoch", "Attach number of a group", {Group()});
  reforms_ = m.MakeCounter("group_reforms_total", "Groups that came back with new processes",
                           {Group(), {"cause", kReformCauses}});
  reform_seconds_ = m.MakeHistogram("group_reform_duration_seconds", "Stream lost to group ready",
                                    {.5, 1, 2, 5, 10, 20, 30, 60, 120, 300})
                        .At();
}

void EngineMetrics::Ended(const absl::Status& status) const {
  requests_.At("default", "completion", Outcome(status)).Add();
}

void EngineMetrics::FirstToken(absl::Duration since_arrival, AdapterHeat heat) const {
  const char* state = heat == AdapterHeat::kBase   ? "base"
                      : heat == AdapterHeat::kHot  ? "hot"
                      : heat == AdapterHeat::kWarm ? "warm"
                                                   : "cold";
  ttft_.At("default", state).Observe(absl::ToDoubleSeconds(since_arrival));
}

void EngineMetrics::Queued(absl::Duration wait, absl::Duration load_wait) const {
  queue_wait_.Observe(absl::ToDoubleSeconds(wait));
  wait_for_pages_.Observe(absl::ToDoubleSeconds(wait - load_wait));
  if (load_wait > absl::ZeroDuration()) wait_for_load_.Observe(absl::ToDoubleSeconds(load_wait));
}

void EngineMetrics::Evicted(Tier tier, bool pressure, uint32_t adapters) const {
  if (adapters > 0) evictions_.At(TierName(tier), pressure ? "pressure" : "retire").Add(adapters);
}

void GroupMetrics::On(Tier tier, uint64_t adapters, double bytes) const {
  const OnTier& series = tier == Tier::kDevice ? device : tier == Tier::kHost ? host : disk;
  series.adapters.Set(static_cast<double>(adapters));
  series.bytes.Set(bytes);
}

void EngineMetrics::Looked(AdapterLookup found) const {
  const char* result = found == AdapterLookup::kDeviceHit     ? "device_hit"
                       : found == AdapterLookup::kHostHit     ? "host_hit"
                       : found == AdapterLookup::kDiskHit     ? "disk_hit"
                       : found == AdapterLookup::kFetch       ? "coordinator_fetch"
                       : found == AdapterLookup::kObjectFetch ? "object_fetch"
                                                              : "unknown";
  lookups_.At(result).Add();
}

void EngineMetrics::Loaded(FetchSource from, const absl::Status& outcome,
                           absl::Duration took) const {
  const char* source = from == FetchSource::kHost     ? "host"
                       : from == FetchSource::kDisk   ? "disk"
                       : from == FetchSource::kObject ? "object"
                                                      : "coordinator";
  loads_.At(source, LoadResult(outcome)).Add();
  if (outcome.ok()) load_seconds_.At(source).Observe(absl::ToDoubleSeconds(took));
}

void EngineMetrics::Requeued(bool drained, size_t requests) const {
  retries_.At(drained ? "drain" : "group_lost").Add(static_cast<double>(requests));
}

// Without a word from its ranks a lost group is taken for one whose rank exited.
void EngineMetrics::Reformed(const std::string& group, bool drained, absl::Duration took) const {
  reforms_.At(group, drained ? "operator" : "rank_exit").Add();
  reform_seconds_.Observe(absl::ToDoubleSeconds(took));
}

// One that drained and left is in none of the states: nothing is wrong with it.
void EngineMetrics::GroupIs(const std::string& group, const std::string& state) const {
  for (const std::string& s : kGroupStates) group_state_.At(group, s).Set(s == state ? 1 : 0);
  for (const std::string& cause : kReformCauses) reforms_.At(group, cause);  // from 0 on
  if (state == "ready" || state == "draining") return;
  const GroupMetrics g = ForGroup(group);
  for (const Gauge& gauge : {g.pages_kv, g.pages_adapter, g.pages_free}) gauge.Set(0);
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) g.On(tier, 0, 0);
}

void EngineMetrics::Forget(const std::string& group) const {
  for (const auto* family :
       {&pages_, &residents_, &resident_bytes_, &group_state_, &group_epoch_}) {
    family->Forget("group", group);
  }
  reforms_.Forget("group", group);
}

GroupMetrics EngineMetrics::ForGroup(const std::string& group) const {
  const auto on = [&](Tier tier) {
    return GroupMetrics::OnTier{residents_.At(group, TierName(tier)),
                                resident_bytes_.At(group, TierName(tier))};
  };
  return {pages_.At(group, "kv"),   pages_.At(group, "adapter"),
          pages_.At(group, "free"), on(Tier::kDevice),
          on(Tier::kHost),          on(Tier::kDisk),
          group_epoch_.At(group)};
}

}  // namespace rootstock
