// Mutation fuzzing: random inputs end in a value or in a refusal that names its reason, never in a
// crash.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

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
constexpr int64_t kTold = 100'000;  // executions between two lines

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
       .allowed = {"all", "safetensors", "config", "canonical", "tokenizer", "aliases", "tables",
                   "manifest"}},
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

// Inputs to change further: of each outcome the first that had it, or a shorter one since; short
// inputs run fast, and more of what is changed in them matters. Half of the picks are accepted
// inputs: most changes to a refused one change nothing. Not thread-safe.
class Corpus {
 public:
  explicit Corpus(const std::vector<std::string>& seeds) : accepted_(seeds), refused_(seeds) {}

  const std::string& Pick(Mutator& mutator) const {
    const auto& pool = mutator.Below(2) == 0 ? accepted_ : refused_;
    return pool[mutator.Below(pool.size())];
  }
  void Add(bool accepted, const std::string& outcome, const std::string& input) {
    auto& pool = accepted ? accepted_ : refused_;
    const auto [known, is_new] = places_.try_emplace(outcome, pool.size());
    if (!is_new) {
      if (known->second < pool.size() && input.size() < pool[known->second].size()) {
        pool[known->second] = input;
      }
    } else if (pool.size() < kMaxCorpus) {
      pool.push_back(input);
    }
  }
  std::string Size() const {
    return absl::StrCat(places_.size(), " outcomes, corpus of ", accepted_.size(), " and ",
                        refused_.size());
  }

 private:
  std::vector<std::string> accepted_, refused_;
  std::map<std::string, size_t> places_;  // by outcome; past the end: not kept
};

// The current input in a file that outlives a crash: its length, then the input. Mapped, so that no
// execution waits for the file system. Not thread-safe.
class KeptInput {
 public:
  explicit KeptInput(const std::string& path) {
    if (path.empty()) return;
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    Require(file >= 0 && ftruncate(file, sizeof(Kept)) == 0, "--keep can be written");
    void* at = mmap(nullptr, sizeof(Kept), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    Require(at != MAP_FAILED, "--keep can be mapped");
    close(file);
    kept_ = static_cast<Kept*>(at);
  }
  ~KeptInput() {
    if (kept_ != nullptr) munmap(kept_, sizeof(Kept));
  }
  KeptInput(const KeptInput&) = delete;
  KeptInput& operator=(const KeptInput&) = delete;

  void Set(const std::string& input) {
    if (kept_ == nullptr) return;
    kept_->length = input.size();
    input.copy(kept_->bytes, sizeof(kept_->bytes));
  }
  static std::string Read(const std::string& path) {
    Kept kept{};
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(&kept), sizeof(kept));
    Require(file.good() && kept.length <= sizeof(kept.bytes), "--replay is a file of --keep");
    return {kept.bytes, kept.length};
  }

 private:
  struct Kept {
    uint64_t length;
    char bytes[kMaxInput];
  };
  Kept* kept_ = nullptr;
};

void Fuzz(const FuzzTarget& target, const FuzzOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  KeptInput kept(options.keep);
  Mutator mutator(static_cast<uint64_t>(options.seed), target.words, kMaxInput);
  Corpus corpus(target.seeds);
  for (const std::string& seed : target.seeds) {
    const auto result = target.run(seed);
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    Require(result.ok(), "a seed is refused");
  }
  int64_t done = 0, right = 0;
  const auto tell = [&] {
    std::printf("%-11s %lld executions, %lld accepted, %s, %.0f s\n", target.name.c_str(),
                static_cast<long long>(done), static_cast<long long>(right), corpus.Size().c_str(),
                seconds());
    std::fflush(stdout);
  };
  for (; done < options.executions; ++done) {
    if (options.seconds > 0 && done % 256 == 0 && seconds() > options.seconds) break;
    if (done % kTold == 0 && done > 0) tell();
    const std::string& base = corpus.Pick(mutator);
    const std::string input = mutator.Mutate(base, corpus.Pick(mutator));
    kept.Set(input);
    const auto result = target.run(input);
    right += result.ok();
    corpus.Add(result.ok(), OutcomeOf(result), input);
  }
  tell();
}

void Replay(const FuzzTarget& target, const std::string& path) {
  const std::string outcome = OutcomeOf(target.run(KeptInput::Read(path)));
  std::printf("%s: %s\n", target.name.c_str(), outcome.c_str());
}

int Main(int argc, char** argv) {
  FuzzOptions options;
  const ProgramInfo program = {"fuzz_test", "mutation fuzzing of the parsers", "1"};
  if (const auto code = ParseFlagsOrExit(program, FuzzFlags(options), argc, argv)) return *code;
  for (const FuzzTarget& target :
       {SafetensorsTarget(), PeftConfigTarget(), CanonicalTarget(), TokenizerTarget(),
        AliasesTarget(), TablesTarget(), ManifestTarget()}) {
    if (options.parser != "all" && options.parser != target.name) continue;
    options.replay.empty() ? Fuzz(target, options) : Replay(target, options.replay);
  }
  return 0;
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
