// lora-bench: the figures of docs/benchmarks. `step` measures the engine alone.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/perf/step_bench.h"

namespace {

std::string CommandLine(int argc, char** argv) {
  std::string line = "lora-bench";
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

void AddStepOptions(CLI::App& app, rootstock::StepBenchOptions& options, std::string& dtype) {
  app.add_option("--model", options.model, "Hugging Face directory")->required();
  app.add_flag("--dummy", options.dummy_weights, "random weights of the model's config.json");
  app.add_option("--adapter", options.adapter_dirs, "PEFT directories, repeated up to --adapters");
  app.add_option("--adapters", options.adapters, "distinct adapters in the batch");
  app.add_option("--rows", options.rows, "decoding sequences");
  app.add_option("--context", options.context, "prompt tokens a row");
  app.add_option("--steps", options.steps, "decode steps a round");
  app.add_option("--rounds", options.rounds, "rounds; base and LoRA steps alternate");
  app.add_option("--threads", options.threads, "0: the cores this process may use");
  app.add_option("--dtype", dtype, "storage of the weights")->check(CLI::IsMember({"bf16", "f32"}));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Rootstock's benchmarks; results as JSON on standard output"};
  app.require_subcommand(1);
  std::string commit = "unknown", out, dtype = "bf16";
  app.add_option("--commit", commit, "recorded with the results");
  app.add_option("--out", out, "write the JSON here too");
  rootstock::StepBenchOptions options;
  CLI::App* step = app.add_subcommand("step", "decode steps of one rank, without a coordinator");
  AddStepOptions(*step, options, dtype);
  CLI11_PARSE(app, argc, argv);
  options.dtype = dtype == "f32" ? rootstock::DType::kF32 : rootstock::DType::kBF16;

  const auto results = rootstock::RunStepBench(options);
  if (!results.ok()) {
    std::fprintf(stderr, "lora-bench: %s\n", std::string(results.status().message()).c_str());
    return 1;
  }
  const std::string json = rootstock::ReportJson(*results, CommandLine(argc, argv), commit);
  std::fputs(json.c_str(), stdout);
  if (!out.empty()) std::ofstream(out) << json;
  return 0;
}
