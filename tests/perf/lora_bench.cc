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
#include "tests/perf/churn_bench.h"
#include "tests/perf/cold_bench.h"
#include "tests/perf/collectives_bench.h"
#include "tests/perf/first_token_bench.h"
#include "tests/perf/gpu_ops.h"
#include "tests/perf/ranks.h"
#include "tests/perf/step_bench.h"
#include "tests/perf/stream_bench.h"
#include "tests/perf/trace/trace_bench.h"

namespace rootstock {
namespace {

struct BenchFlags {
  std::string commit = "unknown", machine, out, dtype = "bf16", device = "cpu";
  std::string sharding = "replicated";
  OpsBenchOptions ops;
  StepBenchOptions step;
  ColdBenchOptions cold;
  StreamBenchOptions streams;
  TraceBenchOptions trace;
  CollectivesBenchOptions collectives;
  int32_t np = 0;  // ranks
};

std::vector<FlagSpec> Flags(BenchFlags& flags) {
  return {
      {.name = "commit", .target = &flags.commit, .help = "recorded with the results"},
      {.name = "machine", .target = &flags.machine, .help = "recorded too; default: the processor"},
      {.name = "out",
       .target = &flags.out,
       .help = "write the JSON here too",
       .placeholder = "FILE"},
  };
}

std::vector<FlagSpec> OpsFlags(BenchFlags& flags) {
  return {
      {.name = "part",
       .target = &flags.ops.parts,
       .help = "operators to measure; none: all",
       .allowed = {"lora", "lora-prefill", "attention", "sampler", "norms", "equal-bits"}},
  };
}

FlagSpec NpFlag(BenchFlags& flags) {
  return {.name = "np",
          .target = &flags.np,
          .help = "start mpirun with so many ranks, a GPU each; 0: this process as it was started",
          .placeholder = "N",
          .min = 0};
}

std::vector<FlagSpec> StepFlags(BenchFlags& flags) {
  StepRigOptions& o = flags.step.rig;
  return {
      NpFlag(flags),
      {.name = "model",
       .target = &o.model,
       .help = "Hugging Face directory",
       .placeholder = "DIR",
       .required = true},
      {.name = "dummy",
       .target = &o.dummy_weights,
       .help = "random weights of the model's config.json"},
      {.name = "adapter",
       .target = &o.adapter_dirs,
       .help = "PEFT directory; all in turn up to --adapters",
       .placeholder = "DIR"},
      {.name = "adapters",
       .target = &o.adapters,
       .help = "distinct adapters in the batch",
       .min = 0},
      {.name = "rows", .target = &o.rows, .help = "decoding sequences", .min = 1},
      {.name = "context", .target = &o.context, .help = "prompt tokens a row", .min = 1},
      {.name = "steps", .target = &o.steps, .help = "decode steps a round", .min = 8},
      {.name = "case",
       .target = &flags.step.cases,
       .help = "instead of --rows and --adapters; may be repeated",
       .placeholder = "ROWSxADAPTERS"},
      {.name = "lora-rank",
       .target = &flags.step.lora_ranks,
       .help = "random adapters on all projections instead of --adapter; of several ranks in turn",
       .placeholder = "R[,R]"},
      {.name = "prompts",
       .target = &flags.step.prompts,
       .help = "instead of measuring, continue these JSON lists of --context ids greedily",
       .placeholder = "FILE"},
      {.name = "tokens-out",
       .target = &flags.step.tokens_out,
       .help = "where --prompts writes its tokens",
       .placeholder = "FILE"},
      {.name = "device",
       .target = &flags.device,
       .help = "where the steps run",
       .allowed = {"cpu", "cuda"}},
      {.name = "eager",
       .target = &o.eager,
       .help = "launch each step's kernels instead of replaying graphs"},
      {.name = "lora-sharding",
       .target = &flags.sharding,
       .help = "how adapters lie over several ranks",
       .allowed = {"replicated", "fully-sharded"}},
      {.name = "alone-of",
       .target = &o.alone_of,
       .help = "run what one tp_rank of N computes, on its own: collectives move nothing",
       .placeholder = "N",
       .min = 0},
      {.name = "rounds", .target = &flags.step.rounds, .help = "rounds; cases alternate", .min = 1},
      {.name = "threads",
       .target = &o.threads,
       .help = "0: the cores this process may use",
       .min = 0},
      {.name = "dtype",
       .target = &flags.dtype,
       .help = "storage of the weights",
       .allowed = {"bf16", "f32"}},
  };
}

std::vector<FlagSpec> ColdFlags(BenchFlags& flags) {
  ColdBenchOptions& o = flags.cold;
  return {
      {.name = "model",
       .target = &o.model,
       .help = "Hugging Face directory",
       .placeholder = "DIR",
       .required = true},
      {.name = "dummy",
       .target = &o.dummy_weights,
       .help = "random weights of the model's config.json"},
      {.name = "lora-rank", .target = &o.lora_rank, .help = "of the adapters", .min = 1},
      {.name = "prompt-tokens",
       .target = &o.prompt_tokens,
       .help = "of the request that waits for its adapter",
       .min = 1,
       .max = 2048},
      {.name = "rows", .target = &o.rows, .help = "that decode meanwhile", .min = 1},
      {.name = "context", .target = &o.context, .help = "of those", .min = 1, .max = 2048},
      {.name = "steps", .target = &o.steps, .help = "of those", .min = 40},
      {.name = "rounds", .target = &o.rounds, .help = "of loads and first tokens", .min = 2},
      {.name = "threads",
       .target = &o.threads,
       .help = "0: the cores this process may use",
       .min = 0},
      {.name = "device",
       .target = &flags.device,
       .help = "where the steps run",
       .allowed = {"cpu", "cuda"}},
      {.name = "dtype",
       .target = &flags.dtype,
       .help = "storage of the weights",
       .allowed = {"bf16", "f32"}},
  };
}

std::vector<FlagSpec> StreamFlags(BenchFlags& flags) {
  StreamBenchOptions& o = flags.streams;
  return {
      {.name = "address",
       .target = &o.address,
       .help = "of the coordinator",
       .placeholder = "HOST:PORT",
       .required = true},
      {.name = "base", .target = &o.base, .help = "the base's served name", .required = true},
      {.name = "name",
       .target = &o.adapters,
       .help = "registered adapter; streams take turns",
       .placeholder = "NAME",
       .required = true},
      {.name = "streams", .target = &o.streams, .help = "concurrent streams", .min = 1},
      {.name = "prompt-tokens",
       .target = &o.prompt_tokens,
       .help = "random token ids a stream",
       .min = 1},
      {.name = "first-id", .target = &o.first_id, .help = "lowest of those ids", .min = 0},
      {.name = "last-id", .target = &o.last_id, .help = "highest of those ids", .min = 0},
      {.name = "max-tokens", .target = &o.max_tokens, .help = "tokens a stream", .min = 4},
      {.name = "rounds",
       .target = &o.rounds,
       .help = "rounds; base and LoRA steps alternate",
       .min = 1},
  };
}

std::vector<FlagSpec> TraceFlags(BenchFlags& flags) {
  TraceBenchOptions& o = flags.trace;
  return {
      {.name = "address",
       .target = &o.address,
       .help = "of the coordinator",
       .placeholder = "HOST:PORT",
       .required = true},
      {.name = "name",
       .target = &o.names,
       .help = "registered adapter; together more than the device holds",
       .placeholder = "NAME",
       .required = true},
      {.name = "resident",
       .target = &o.resident,
       .help = "the first of them are the few",
       .min = 1},
      {.name = "in-turn",
       .target = &o.in_turn,
       .help = "so many resident ones run beside, one after the other; 0: not",
       .min = 0},
      {.name = "alpha", .target = &o.alphas, .help = "skew of adapters; 1: none"},
      {.name = "cv", .target = &o.cvs, .help = "coefficient of variation of the gaps"},
      {.name = "rate",
       .target = &o.rate,
       .help = "requests a second of replays, none at saturation; 0: 90 % of what that gives"},
      {.name = "streams",
       .target = &o.streams,
       .help = "requests under way at saturation",
       .min = 1},
      {.name = "requests", .target = &o.requests, .help = "of a run", .min = 1},
      {.name = "rounds", .target = &o.rounds, .help = "rounds; many and few alternate", .min = 1},
      {.name = "seed", .target = &o.seed, .help = "of the first round's traces", .min = 0},
      {.name = "seconds", .target = &o.seconds, .help = "then no run begins; 0: all do", .min = 0},
      {.name = "min-length",
       .target = &o.min_length,
       .help = "tokens of prompts, outputs",
       .min = 1},
      {.name = "max-length",
       .target = &o.max_length,
       .help = "one more than the longest",
       .min = 2},
      {.name = "first-id", .target = &o.first_id, .help = "lowest id of prompts", .min = 0},
      {.name = "last-id", .target = &o.last_id, .help = "highest id of prompts", .min = 0},
  };
}

std::vector<FlagSpec> CollectivesFlags(BenchFlags& flags) {
  CollectivesBenchOptions& o = flags.collectives;
  return {
      NpFlag(flags),
      {.name = "rounds", .target = &o.rounds, .help = "replays of each graph", .min = 1},
  };
}

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
      program, Flags(flags),
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
