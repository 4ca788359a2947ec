// lora-bench: the figures of docs/benchmarks. `step` measures the engine alone, `streams` the whole
// path.
#include <cstdio>
#include <fstream>
#include <string>

#include "common/flags/commands.h"
#include "tests/perf/step_bench.h"
#include "tests/perf/stream_bench.h"

namespace rootstock {
namespace {

struct BenchFlags {
  std::string commit = "unknown", out, dtype = "bf16", device = "cpu";
  StepBenchOptions step;
  StreamBenchOptions streams;
};

std::vector<FlagSpec> Flags(BenchFlags& flags) {
  return {
      {.name = "commit", .target = &flags.commit, .help = "recorded with the results"},
      {.name = "out",
       .target = &flags.out,
       .help = "write the JSON here too",
       .placeholder = "FILE"},
  };
}

std::vector<FlagSpec> StepFlags(BenchFlags& flags) {
  StepRigOptions& o = flags.step.rig;
  return {
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
       .target = &o.lora_rank,
       .help = "random adapters of this rank on all projections instead of --adapter",
       .min = 0,
       .max = 256},
      {.name = "device",
       .target = &flags.device,
       .help = "where the steps run",
       .allowed = {"cpu", "cuda"}},
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

int Report(const absl::StatusOr<std::vector<BenchResult>>& results, const BenchFlags& flags,
           const std::string& command_line) {
  if (!results.ok()) {
    std::fprintf(stderr, "lora-bench: %s\n", std::string(results.status().message()).c_str());
    return 1;
  }
  const std::string json = ReportJson(*results, command_line, flags.commit);
  std::fputs(json.c_str(), stdout);
  if (!flags.out.empty()) std::ofstream(flags.out) << json;
  return 0;
}

int RunStep(BenchFlags& flags, const std::string& command_line) {
  flags.step.rig.dtype = flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
  flags.step.rig.cuda = flags.device == "cuda";
  return Report(RunStepBench(flags.step), flags, command_line);
}

int Main(int argc, char** argv) {
  std::string command_line = "lora-bench";
  for (int i = 1; i < argc; ++i) command_line += std::string(" ") + argv[i];
  BenchFlags flags;
  const ProgramInfo program = {"lora-bench",
                               "Rootstock's benchmarks; results as JSON on standard output",
                               ROOTSTOCK_VERSION};
  return RunCommand(
      program, Flags(flags),
      {{.name = "step",
        .help = "decode steps of one rank, without a coordinator",
        .table = StepFlags(flags),
        .run = [&] { return RunStep(flags, command_line); }},
       {.name = "streams",
        .help = "gRPC streams against a running coordinator",
        .table = StreamFlags(flags),
        .run = [&] { return Report(RunStreamBench(flags.streams), flags, command_line); }}},
      argc, argv);
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
