// Mutation fuzzing: random inputs end in a value or in a refusal that names its reason, never in a
// crash.
#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace rootstock {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_test: %s\n", what);
  std::abort();
}

namespace {

constexpr size_t kMaxInput = 16 << 10;
constexpr size_t kMaxCorpus = 2000;

// In which way it ended: what an accepted input came to, or the refusal's reason and its text
// without the input's own. A refusal names its reason, in at most 1000 bytes.
std::string OutcomeOf(const absl::StatusOr<std::string>& result) {
  if (result.ok()) return *result;
  const auto detail = GetErrorDetail(result.status());
  Require(detail.has_value(), "a refusal names no reason");
  const std::string message(result.status().message());
  Require(message.size() <= 1000, "a refusal is too long");
  std::string outcome = ReasonName(detail->reason);
  for (const char c : message.substr(message.rfind(": ") + 1).substr(0, 60)) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == ' ') outcome += c;
  }
  return outcome;
}

struct FuzzOptions {
  std::string parser = "all";
  int64_t executions = 5000;
  double seconds = 0;
  int64_t seed = 1;
  std::string keep, replay;
};

std::vector<FlagSpec> FuzzFlags(FuzzOptions& o) {
  return {
      {.name = "parser",
       .target = &o.parser,
       .help = "which one",
       .allowed = {"all", "safetensors", "config", "canonical", "tokenizer"}},
      {.name = "executions", .target = &o.executions, .help = "a parser", .min = 1},
      {.name = "seconds", .target = &o.seconds, .help = "a parser, at most; 0: no limit", .min = 0},
      {.name = "seed", .target = &o.seed, .help = "of the random changes"},
      {.name = "keep",
       .target = &o.keep,
       .help = "always holds the current input",
       .placeholder = "FILE"},
      {.name = "replay",
       .target = &o.replay,
       .help = "run this input alone",
       .placeholder = "FILE"},
  };
}

// The current input in a file that outlives a crash. Not thread-safe.
class KeptInput {
 public:
  explicit KeptInput(const std::string& path) {
    if (path.empty()) return;
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    Require(file_ >= 0, "--keep can be written");
  }
  ~KeptInput() {
    if (file_ >= 0) close(file_);
  }
  void Set(const std::string& input) const {
    if (file_ < 0) return;
    Require(ftruncate(file_, 0) == 0 &&
                pwrite(file_, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()),
            "--keep can be written");
  }

 private:
  int file_ = -1;
};

void Fuzz(const FuzzTarget& target, const FuzzOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const KeptInput kept(options.keep);
  Mutator mutator(static_cast<uint64_t>(options.seed), target.words, kMaxInput);
  // Half of the inputs begin with an accepted one: most changes to a refused one change nothing.
  std::vector<std::string> accepted = target.seeds, refused = target.seeds;
  const auto pick = [&]() -> const std::string& {
    const auto& pool = mutator.Below(2) == 0 ? accepted : refused;
    return pool[mutator.Below(pool.size())];
  };
  std::set<std::string> outcomes;
  for (const std::string& seed : target.seeds) {
    const auto result = target.run(seed);
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    Require(result.ok(), "a seed is refused");
    outcomes.insert(*result);
  }
  int64_t done = 0, right = 0;
  for (; done < options.executions; ++done) {
    if (options.seconds > 0 && done % 256 == 0 && seconds() > options.seconds) break;
    const std::string& base = pick();
    const std::string input = mutator.Mutate(base, pick());
    kept.Set(input);
    const auto result = target.run(input);
    right += result.ok();
    auto& pool = result.ok() ? accepted : refused;
    if (outcomes.insert(OutcomeOf(result)).second && pool.size() < kMaxCorpus) {
      pool.push_back(input);
    }
  }
  std::printf("%-11s %lld executions, %lld accepted, %zu outcomes, corpus of %zu and %zu, %.0f s\n",
              target.name.c_str(), static_cast<long long>(done), static_cast<long long>(right),
              outcomes.size(), accepted.size(), refused.size(), seconds());
  std::fflush(stdout);
}

void Replay(const FuzzTarget& target, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Require(file.good(), "--replay can be read");
  const std::string input(std::istreambuf_iterator<char>(file), {});
  std::printf("%s: %s\n", target.name.c_str(), OutcomeOf(target.run(input)).c_str());
}

int Main(int argc, char** argv) {
  FuzzOptions options;
  const ProgramInfo program = {"fuzz_test", "mutation fuzzing of the parsers", "1"};
  if (const auto code = ParseFlagsOrExit(program, FuzzFlags(options), argc, argv)) return *code;
  for (const FuzzTarget& target :
       {SafetensorsTarget(), PeftConfigTarget(), CanonicalTarget(), TokenizerTarget()}) {
    if (options.parser != "all" && options.parser != target.name) continue;
    options.replay.empty() ? Fuzz(target, options) : Replay(target, options.replay);
  }
  return 0;
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
