#include "worker/runtime/worker_metrics.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace rootstock {
namespace {

constexpr double kMostTokens = 16384;
constexpr double kMostRequests = 1024;

const char* PhaseOf(const StepFacts& step) {
  if (step.prefill_rows == 0) return "decode";
  return step.prefill_rows == step.requests ? "prefill" : "mixed";
}

std::vector<std::string> PhaseNames() { return {"prefill", "decode", "mixed"}; }

// A fused kernel reports as such instead of as its two halves.
std::vector<std::string> LoraKernels() { return {"shrink", "expand", "fused"}; }

std::vector<std::string> OpNames() {
  std::vector<std::string> out;
  for (const CollectiveOp op : kAllCollectiveOps) out.emplace_back(CollectiveOpName(op));
  return out;
}

std::vector<std::string> MemoryKinds() {
  return {"weights", "pages", "workspace", "graphs", "nccl", "free"};
}

std::vector<std::string> Directions() { return {"h2d", "d2h"}; }

std::vector<std::string> NcclCodeNames(std::vector<std::string> first = {}) {
  first.insert(first.end(), kNcclCodes.begin(), kNcclCodes.end());
  return first;
}

const char* PhaseOf(GroupLoss::Cause cause) {
  switch (cause) {
    case GroupLoss::Cause::kLateStep:
      return "step";
    case GroupLoss::Cause::kStalledWait:
      return "wait";
    default:
      return "idle";
  }
}

}  // namespace

WorkerMetrics::WorkerMetrics(Metrics& m, int tp_rank, const WorkerFacts& facts)
    : tp_rank_(std::to_string(tp_rank)),
      step_duration_(
          m.MakeHistogram("step_duration_seconds", "Time of a step on this tp_rank.",
                          {.001, .002, .004, .006, .008, .01, .015, .02, .03, .05, .1, .2, .5, 1},
                          {{"tp_rank", {tp_rank_}}, {"phase", PhaseNames()}})),
      batch_tokens_(m.MakeHistogram("step_batch_tokens", "Tokens run in a step.",
                                    PowersOfTwo(kMostTokens), {{"tp_rank", {tp_rank_}}})),
      batch_requests_(m.MakeHistogram("step_batch_requests", "Sequences run in a step.",
                                      PowersOfTwo(kMostRequests), {{"tp_rank", {tp_rank_}}})),
      distinct_adapters_(
          m.MakeHistogram("step_distinct_adapters", "Different adapters named by a step.",
                          {0, 1, 2, 4, 8, 16, 32, 64, 128}, {{"tp_rank", {tp_rank_}}})),
      lora_segments_(m.MakeCounter("lora_segments_total",
                                   "Segments (one adapter at one module) run by a LoRA kernel.",
                                   {{"tp_rank", {tp_rank_}}, {"kernel", LoraKernels()}})),
      collective_seconds_(m.MakeCounter("collective_seconds_total",
                                        "Time of the host in collectives, waiting for other ranks "
                                        "included; with GPUs they are only enqueued in it.",
                                        {{"tp_rank", {tp_rank_}}, {"op", OpNames()}})),
      collective_calls_(m.MakeCounter("collective_calls_total", "Collectives that were called.",
                                      {{"tp_rank", {tp_rank_}}, {"op", OpNames()}})),
      collective_bytes_(m.MakeCounter("collective_bytes_total",
                                      "Bytes of the buffers of collectives.",
                                      {{"tp_rank", {tp_rank_}}, {"op", OpNames()}})),
      copy_bytes_(m.MakeCounter("adapter_copy_bytes_total",
                                "Bytes of adapters copied between host and device.",
                                {{"tp_rank", {tp_rank_}}, {"direction", Directions()}})),
      copy_stall_(m.MakeCounter("adapter_copy_stall_seconds_total",
                                "Time that steps stood still until an adapter was copied.",
                                {{"tp_rank", {tp_rank_}}, {"direction", Directions()}})),
      last_step_(m.MakeGauge("last_step_timestamp_seconds",
                             "When the last step or tick ended, in Unix time.",
                             {{"tp_rank", {tp_rank_}}})) {
  if (tp_rank == 0) {
    skew_ = m.MakeHistogram(
        "tp_rank_skew_seconds",
        "How much later than the first the last tp_rank arrived at its collectives in a step.",
        {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
        {{"tp_rank", {tp_rank_}}});
  }
  if (facts.device.empty()) {
    lora_kernel_seconds_ = m.MakeCounter("lora_kernel_seconds_total", "Time in LoRA kernels.",
                                         {{"tp_rank", {tp_rank_}}, {"kernel", LoraKernels()}});
  } else {
    memory_ = m.MakeGauge("gpu_memory_bytes", "Device memory by what it holds.",
                          {{"tp_rank", {tp_rank_}}, {"kind", MemoryKinds()}});
    step_busy_ = m.MakeCounter("step_device_seconds_total",
                               "Time of the device in steps, from the first operation to the last.",
                               {{"tp_rank", {tp_rank_}}, {"phase", PhaseNames()}});
    step_gap_ = m.MakeCounter("step_gap_seconds_total",
                              "Time of the device from the end of a step to the begin of the next, "
                              "by the phase of the latter.",
                              {{"tp_rank", {tp_rank_}}, {"phase", PhaseNames()}});
    MakeLossFamilies(m);
  }
  m.MakeInfo("worker_info", "What this worker is.",
             {{"tp_rank", tp_rank_},
              {"gpu_uuid", facts.device},
              {"node", facts.node},
              {"group", facts.group},
              {"product", facts.product}});
}

// What they count ends the process, so each is 0 until just before that.
void WorkerMetrics::MakeLossFamilies(Metrics& m) {
  nccl_aborts_ = m.MakeCounter("nccl_aborts_total",
                               "Groups given up while a step ran, by NCCL's error or for a wait.",
                               {{"tp_rank", {tp_rank_}}, {"code", NcclCodeNames({"stall"})}});
  nccl_errors_ = m.MakeCounter("nccl_async_errors_total", "Errors that NCCL told of later.",
                               {{"tp_rank", {tp_rank_}}, {"code", NcclCodeNames()}});
  watchdog_ = m.MakeCounter("watchdog_fired_total",
                            "Waits that took too long: for a step, in a kernel of ours, or for "
                            "another rank's host between steps.",
                            {{"tp_rank", {tp_rank_}}, {"phase", {"step", "wait", "idle"}}});
}

std::function<void(const GroupLoss&)> WorkerMetrics::OnLoss(
    std::function<void(const std::string& why)> end) const {
  return [this, end = std::move(end)](const GroupLoss& loss) {
    CountLoss(loss);
    end(loss.why);
  };
}

void WorkerMetrics::CountLoss(const GroupLoss& loss) const {
  if (!watchdog_.has_value()) return;
  if (loss.cause == GroupLoss::Cause::kNcclError) {
    nccl_errors_->At(tp_rank_, loss.nccl_code).Add();
    nccl_aborts_->At(tp_rank_, loss.nccl_code).Add();
    return;
  }
  watchdog_->At(tp_rank_, PhaseOf(loss.cause)).Add();
  if (loss.cause != GroupLoss::Cause::kLatePeer) nccl_aborts_->At(tp_rank_, "stall").Add();
}

void WorkerMetrics::ObserveStep(const StepFacts& step) {
  step_duration_.At(tp_rank_, PhaseOf(step)).Observe(1e-6 * static_cast<double>(step.duration_us));
  batch_tokens_.At(tp_rank_).Observe(step.tokens);
  batch_requests_.At(tp_rank_).Observe(step.requests);
  distinct_adapters_.At(tp_rank_).Observe(step.distinct_adapters);
  CountLora("shrink", step.lora_shrink);
  CountLora("expand", step.lora_expand);
  if (!step.span.has_value() || !step_busy_.has_value()) return;
  step_busy_->At(tp_rank_, PhaseOf(step)).Add(step.span->busy);
  step_gap_->At(tp_rank_, PhaseOf(step)).Add(step.span->gap);
}

void WorkerMetrics::ObserveWork(std::span<const uint64_t> work_us) {
  if (!skew_.has_value()) return;
  const auto [least, most] = std::minmax_element(work_us.begin(), work_us.end());
  skew_->At(tp_rank_).Observe(1e-6 * static_cast<double>(*most - *least));
}

void WorkerMetrics::ObserveMemory(const DeviceMemoryUse& use) {
  if (!memory_.has_value()) return;
  const auto set = [this](const char* kind, uint64_t bytes) {
    memory_->At(tp_rank_, kind).Set(static_cast<double>(bytes));
  };
  set("weights", use.weights);
  set("pages", use.pages);
  set("workspace", use.workspace);
  set("graphs", use.graphs);
  set("nccl", use.nccl);
  set("free", use.free);
}

void WorkerMetrics::CountLora(const char* kernel, const LoraKernelStats& stats) {
  lora_segments_.At(tp_rank_, kernel).Add(static_cast<double>(stats.segments));
  if (lora_kernel_seconds_.has_value()) {
    lora_kernel_seconds_->At(tp_rank_, kernel).Add(stats.seconds);
  }
}

void WorkerMetrics::ObserveLoads(const LoadStats& stats) {
  copy_bytes_.At(tp_rank_, "h2d")
      .Add(static_cast<double>(stats.copied_bytes - loads_seen_.copied_bytes));
  copy_stall_.At(tp_rank_, "h2d").Add(stats.stall_seconds - loads_seen_.stall_seconds);
  loads_seen_ = stats;
}

void WorkerMetrics::ObserveTick(const CollectiveStats& stats) {
  last_step_.At(tp_rank_).Set(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  for (const CollectiveOp op : kAllCollectiveOps) {
    CollectiveCounters& seen = seen_[static_cast<int>(op)];
    const CollectiveCounters& now = stats.of(op);
    collective_seconds_.At(tp_rank_, CollectiveOpName(op)).Add(now.seconds - seen.seconds);
    collective_calls_.At(tp_rank_, CollectiveOpName(op))
        .Add(static_cast<double>(now.calls - seen.calls));
    collective_bytes_.At(tp_rank_, CollectiveOpName(op))
        .Add(static_cast<double>(now.bytes - seen.bytes));
    seen = now;
  }
}

}  // namespace rootstock
