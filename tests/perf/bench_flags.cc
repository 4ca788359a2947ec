#include "tests/perf/bench_flags.h"

namespace rootstock {
namespace {

FlagSpec NpFlag(BenchFlags& flags) {
  return {.name = "np",
          .target = &flags.np,
          .help = "start mpirun with so many ranks, a GPU each; 0: this process as it was started",
          .placeholder = "N",
          .min = 0};
}

}  // namespace

std::vector<FlagSpec> CommonFlags(BenchFlags& flags) {
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

}  // namespace rootstock
