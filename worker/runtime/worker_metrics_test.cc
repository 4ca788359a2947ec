#include "worker/runtime/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/worker_options.h"

namespace rootstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(WorkerMetrics, CountsStepsByPhase) {
  Metrics metrics;
  WorkerMetrics worker(metrics, 1, {"", "n", "g", "rootstock 0"});
  worker.ObserveStep({5, 2, 0, 1, 3000});
  worker.ObserveStep({9, 2, 2, 3, 3000});
  worker.ObserveStep({9, 2, 1, 0, 3000});
  worker.ObserveStep({1, 1, 0, 0, 3000});
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr(R"(step_duration_seconds_count{phase="decode",tp_rank="1"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(step_duration_seconds_count{phase="prefill",tp_rank="1"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(step_duration_seconds_count{phase="mixed",tp_rank="1"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(step_batch_tokens_sum{tp_rank="1"} 24)"));
  EXPECT_THAT(text, HasSubstr(R"(step_distinct_adapters_sum{tp_rank="1"} 4)"));
  EXPECT_THAT(text, HasSubstr(R"(group="g")"));
}

TEST(WorkerMetrics, DeviceMemoryIsShownOnAGpuAlone) {
  Metrics on_gpu, on_cpu;
  WorkerMetrics gpu(on_gpu, 0, {"GPU-1", "n", "g", "rootstock 0"});
  WorkerMetrics cpu(on_cpu, 0, {"", "n", "g", "rootstock 0"});
  gpu.ObserveMemory({1000, 2000, 300, 50, 60, 40});
  cpu.ObserveMemory({1, 2, 3, 4, 5, 6});
  for (const char* line : {R"(rootstock_gpu_memory_bytes{kind="weights",tp_rank="0"} 1000)",
                           R"(rootstock_gpu_memory_bytes{kind="pages",tp_rank="0"} 2000)",
                           R"(rootstock_gpu_memory_bytes{kind="workspace",tp_rank="0"} 300)",
                           R"(rootstock_gpu_memory_bytes{kind="graphs",tp_rank="0"} 50)",
                           R"(rootstock_gpu_memory_bytes{kind="nccl",tp_rank="0"} 60)",
                           R"(rootstock_gpu_memory_bytes{kind="free",tp_rank="0"} 40)"}) {
    EXPECT_THAT(on_gpu.Text(), HasSubstr(line));
  }
  EXPECT_THAT(on_cpu.Text(), Not(HasSubstr("gpu_memory_bytes")));
  // What LoRA takes there is part of other kernels.
  EXPECT_THAT(on_gpu.Text(), Not(HasSubstr("lora_kernel_seconds")));
  EXPECT_THAT(on_cpu.Text(), HasSubstr("lora_kernel_seconds"));
}

TEST(WorkerMetrics, TimeOfTheDeviceInStepsAndBetweenThem) {
  Metrics on_gpu, on_cpu;
  WorkerMetrics gpu(on_gpu, 0, {"GPU-1", "n", "g", "rootstock 0"});
  StepFacts decode{5, 2, 0, 1, 3000}, mixed{9, 2, 1, 0, 3000};
  decode.span = {0.25, 2};
  mixed.span = {0.5, 4};
  gpu.ObserveStep(decode);
  gpu.ObserveStep(mixed);
  gpu.ObserveStep(decode);
  decode.span = std::nullopt;
  gpu.ObserveStep(decode);
  for (const char* line : {R"(rootstock_step_device_seconds_total{phase="decode",tp_rank="0"} 4)",
                           R"(rootstock_step_device_seconds_total{phase="mixed",tp_rank="0"} 4)",
                           R"(rootstock_step_gap_seconds_total{phase="decode",tp_rank="0"} 0.5)",
                           R"(rootstock_step_gap_seconds_total{phase="mixed",tp_rank="0"} 0.5)",
                           R"(rootstock_step_gap_seconds_total{phase="prefill",tp_rank="0"} 0)"}) {
    EXPECT_THAT(on_gpu.Text(), HasSubstr(line));
  }
  WorkerMetrics cpu(on_cpu, 0, {"", "n", "g", "rootstock 0"});
  cpu.ObserveStep(mixed);
  EXPECT_THAT(on_cpu.Text(), Not(HasSubstr("step_gap")));
}

TEST(WorkerMetrics, ALostGroupIsCountedByWhatToldOfIt) {
  using Cause = GroupLoss::Cause;
  Metrics on_gpu, on_cpu;
  WorkerMetrics gpu(on_gpu, 1, {"GPU-1", "n", "g", "rootstock 0"});
  for (const char* line : {R"(nccl_aborts_total{code="stall",tp_rank="1"} 0)",
                           R"(nccl_async_errors_total{code="remote_error",tp_rank="1"} 0)",
                           R"(watchdog_fired_total{phase="step",tp_rank="1"} 0)"}) {
    EXPECT_THAT(on_gpu.Text(), HasSubstr(line));
  }
  // What ends the group comes behind the count, for it ends this process too.
  std::vector<std::string> ends;
  const auto on_loss = gpu.OnLoss([&](const std::string& why) {
    ends.push_back(why);
    if (why == "late") {
      EXPECT_THAT(on_gpu.Text(), HasSubstr(R"(watchdog_fired_total{phase="step",tp_rank="1"} 1)"));
    }
  });
  on_loss({Cause::kLateStep, "late"});
  on_loss({Cause::kStalledWait, "stalled"});
  on_loss({Cause::kLatePeer, "late peer"});
  on_loss({Cause::kNcclError, "remote", "remote_error"});
  EXPECT_THAT(ends, ElementsAre("late", "stalled", "late peer", "remote"));
  for (const char* line : {R"(nccl_aborts_total{code="stall",tp_rank="1"} 2)",
                           R"(nccl_aborts_total{code="remote_error",tp_rank="1"} 1)",
                           R"(nccl_async_errors_total{code="remote_error",tp_rank="1"} 1)",
                           R"(watchdog_fired_total{phase="step",tp_rank="1"} 1)",
                           R"(watchdog_fired_total{phase="wait",tp_rank="1"} 1)",
                           R"(watchdog_fired_total{phase="idle",tp_rank="1"} 1)"}) {
    EXPECT_THAT(on_gpu.Text(), HasSubstr(line));
  }
  WorkerMetrics cpu(on_cpu, 0, {"", "n", "g", "rootstock 0"});
  cpu.OnLoss([&](const std::string& why) { ends.push_back(why); })({Cause::kLateStep, "of a CPU"});
  EXPECT_EQ(ends.back(), "of a CPU");
  EXPECT_THAT(on_cpu.Text(), Not(HasSubstr("nccl")));
}

TEST(WorkerMetrics, LoraKernelsAddUp) {
  Metrics metrics;
  WorkerMetrics worker(metrics, 0, {});
  StepFacts step{1, 1, 0, 1, 3000};
  step.lora_shrink = {3, 0.25};
  step.lora_expand = {3, 0.5};
  worker.ObserveStep(step);
  worker.ObserveStep(step);
  worker.ObserveStep({1, 1, 0, 0, 3000});  // the base alone
  const std::string text = metrics.Text();
  for (const char* line :
       {R"(rootstock_lora_segments_total{kernel="shrink",tp_rank="0"} 6)",
        R"(rootstock_lora_segments_total{kernel="fused",tp_rank="0"} 0)",
        R"(rootstock_lora_kernel_seconds_total{kernel="shrink",tp_rank="0"} 0.5)",
        R"(rootstock_lora_kernel_seconds_total{kernel="expand",tp_rank="0"} 1)"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(WorkerMetrics, SkewIsWhatTheLastRankWorkedLonger) {
  Metrics metrics;
  WorkerMetrics first(metrics, 0, {});
  const std::vector<uint64_t> apart = {3000, 5000, 3500}, together = {4000, 4000, 4000};
  first.ObserveWork(apart);
  first.ObserveWork(together);
  const std::string text = metrics.Text();
  for (const char* line : {R"(rootstock_tp_rank_skew_seconds_count{tp_rank="0"} 2)",
                           R"(rootstock_tp_rank_skew_seconds_sum{tp_rank="0"} 0.002)",
                           R"(rootstock_tp_rank_skew_seconds_bucket{tp_rank="0",le="0.001"} 1)"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  Metrics others;
  WorkerMetrics second(others, 1, {});
  second.ObserveWork(apart);
  EXPECT_THAT(others.Text(), testing::Not(HasSubstr("skew")));
}

TEST(WorkerMetrics, CollectivesAddUp) {
  Metrics metrics;
  WorkerMetrics worker(metrics, 0, {});
  const auto self = ThreadCommunicator::Self();
  std::vector<float> data(4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(self->AllReduceSum(data.data(), data.size(), DType::kF32).ok());
    worker.ObserveTick(self->stats());
  }
  EXPECT_THAT(metrics.Text(),
              HasSubstr(R"(rootstock_collective_bytes_total{op="allreduce",tp_rank="0"} 48)"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr(R"(rootstock_collective_calls_total{op="allreduce",tp_rank="0"} 3)"));
}

TEST(WorkerMetrics, LoadsAddUp) {
  Metrics metrics;
  WorkerMetrics worker(metrics, 0, {});
  worker.ObserveLoads({100, 0.25});
  worker.ObserveLoads({300, 0.5});
  worker.ObserveLoads({300, 0.5});
  const std::string text = metrics.Text();
  for (const char* line :
       {R"(rootstock_adapter_copy_bytes_total{direction="h2d",tp_rank="0"} 300)",
        R"(rootstock_adapter_copy_bytes_total{direction="d2h",tp_rank="0"} 0)",
        R"(rootstock_adapter_copy_stall_seconds_total{direction="h2d",tp_rank="0"} 0.5)"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(WorkerOptions, FlagsFillTheOptions) {
  WorkerOptions options;
  const auto flags = WorkerFlags(options);
  const char* argv[] = {"w", "--coordinator", "h:1", "--model", "m", "--page-tokens", "32"};
  ASSERT_TRUE(ParseFlags({"w", "w", "0"}, flags, 7, argv).ok());
  EXPECT_EQ(options.coordinator, "h:1");
  EXPECT_EQ(options.page_tokens, 32u);
  EXPECT_EQ(options.metrics_port, 9500);
  const char* bad[] = {"w", "--coordinator", "h:1", "--model", "m", "--device", "tpu"};
  EXPECT_FALSE(ParseFlags({"w", "w", "0"}, flags, 7, bad).ok());
  for (const char* tokens : {"4", "64"}) {
    const char* edge[] = {"w", "--coordinator", "h:1", "--model", "m", "--page-tokens", tokens};
    EXPECT_TRUE(ParseFlags({"w", "w", "0"}, flags, 7, edge).ok()) << tokens;
  }
  for (const std::string tokens : {"3", "65"}) {
    const char* over[] = {"w", "--coordinator", "h:1",         "--model",
                          "m", "--page-tokens", tokens.c_str()};
    EXPECT_THAT(std::string(ParseFlags({"w", "w", "0"}, flags, 7, over).status().message()),
                HasSubstr("page-tokens=" + tokens + ": must be 4 to 64"));
  }
  const char* crowd[] = {"w", "--coordinator", "h:1", "--model", "m", "--threads", "1025"};
  EXPECT_THAT(std::string(ParseFlags({"w", "w", "0"}, flags, 7, crowd).status().message()),
              HasSubstr("threads=1025: must be 0 to 1024"));
  for (const char* name : {"", "a\nb", "\x1b[31m", "Group 1"}) {
    const char* odd[] = {"w", "--coordinator", "h:1", "--model", "m", "--group", name};
    EXPECT_THAT(std::string(ParseFlags({"w", "w", "0"}, flags, 7, odd).status().message()),
                HasSubstr(": must match [a-z0-9]"));
  }
  const char* none[] = {"w"};
  WorkerOptions fresh;
  EXPECT_FALSE(ParseFlags({"w", "w", "0"}, WorkerFlags(fresh), 1, none).ok());
}

}  // namespace
}  // namespace rootstock
