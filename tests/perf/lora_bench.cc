// lora-bench: the figures of docs/benchmarks. `ops` measures operators, `step` the engine alone,
// `cold` loads of adapters beside steps, `streams` the whole path, `collectives` what tensor
// parallelism adds.
#include <mpi.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/flags/commands.h"
#include "tests/perf/bench_flags.h"
#include "tests/perf/churn_bench.h"
#include "tests/perf/first_token_bench.h"
#include "tests/perf/ranks.h"

namespace rootstock {
namespace {

int Report(const absl::StatusOr<std::vector<BenchResult>>& results, const BenchFlags& flags,
           const std::string& command_line) {
  if (!results.ok()) {
    std::fprintf(stderr, "lora-bench: %s\n", std::string(results.status().message()).c_str());
    const auto detail = GetErrorDetail(results.status());
    return detail && detail->reason == Reason::kConfigInvalid ? 2 : 1;
  }
  const std::string json = ReportJson(*results, command_line, flags.commit, flags.machine);
  std::fputs(json.c_str(), stdout);
  if (!flags.out.empty()) std::ofstream(flags.out) << json;
  return 0;
}

// Alone or under mpirun, where tp_rank 0 reports for all.
int OnRanks(const BenchFlags& flags, const std::string& command_line, char** argv,
            const std::function<absl::StatusOr<std::vector<BenchResult>>()>& run) {
  if (const absl::Status status = BecomeRanks(flags.np, argv); !status.ok()) {
    return Report(status, flags, command_line);
  }
  if (!IsRank()) return Report(run(), flags, command_line);
  int provided = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const auto results = run();
  const int code = rank == 0 || !results.ok() ? Report(results, flags, command_line) : 0;
  MPI_Finalize();
  return code;
}

int RunStep(BenchFlags& flags, const std::string& command_line, char** argv) {
  flags.step.rig.dtype = flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
  flags.step.rig.cuda = flags.device == "cuda";
  flags.step.rig.sharding =
      flags.sharding == "fully-sharded" ? LoraSharding::kFullySharded : LoraSharding::kReplicated;
  return OnRanks(flags, command_line, argv, [&] { return RunStepBench(flags.step); });
}

int RunCold(BenchFlags& flags, const std::string& command_line) {
  flags.cold.dtype = flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
  flags.cold.cuda = flags.device == "cuda";
  return Report(RunColdBench(flags.cold), flags, command_line);
}

int RunCollectives(BenchFlags& flags, const std::string& command_line, char** argv) {
  return OnRanks(flags, command_line, argv, [&] { return RunCollectivesBench(flags.collectives); });
}

int Main(int argc, char** argv) {
  InitLogging("lora-bench", LogLevel::kInfo);  // standard output is the results'
  std::string command_line = "lora-bench";
  for (int i = 1; i < argc; ++i) command_line += std::string(" ") + argv[i];
  BenchFlags flags;
  const ProgramInfo program = {"lora-bench",
                               "Rootstock's benchmarks; results as JSON on standard output\n"
                               "exit codes: 0 done, 1 failed, 2 usage",
                               ROOTSTOCK_VERSION};
  return RunCommand(
      program, CommonFlags(flags),
      {{.name = "ops",
        .help = "single operators on a GPU",
        .table = OpsFlags(flags),
        .run = [&] { return Report(RunOpsBench(flags.ops), flags, command_line); }},
       {.name = "step",
        .help = "decode steps of one rank, without a coordinator",
        .table = StepFlags(flags),
        .run = [&] { return RunStep(flags, command_line, argv); }},
       {.name = "cold",
        .help = "adapters loaded beside steps, of one rank without a coordinator",
        .table = ColdFlags(flags),
        .run = [&] { return RunCold(flags, command_line); }},
       {.name = "collectives",
        .help = "all-reduce of the ranks of mpirun, a GPU each: ours beside NCCL",
        .table = CollectivesFlags(flags),
        .run = [&] { return RunCollectives(flags, command_line, argv); }},
       {.name = "streams",
        .help = "gRPC streams against a running coordinator",
        .table = StreamFlags(flags),
        .run = [&] { return Report(RunStreamBench(flags.streams), flags, command_line); }},
       {.name = "churn",
        .help = "streams of random lengths that come and go; flags of `streams`",
        .table = StreamFlags(flags),
        .run = [&] { return Report(RunChurnBench(flags.streams), flags, command_line); }},
       {.name = "first-token",
        .help = "time to the first token while adapters exceed what fits; flags of `streams`",
        .table = StreamFlags(flags),
        .run = [&] { return Report(RunFirstTokenBench(flags.streams), flags, command_line); }},
       {.name = "trace",
        .help = "S-LoRA's trace against a running coordinator, many adapters beside a few",
        .table = TraceFlags(flags),
        .run = [&] { return Report(RunTraceBench(flags.trace), flags, command_line); }}},
      argc, argv);
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
