#include "tests/perf/ranks.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

const char* RanksOfJob() { return std::getenv("OMPI_COMM_WORLD_SIZE"); }

}  // namespace

bool IsRank() { return RanksOfJob() != nullptr; }

absl::Status BecomeRanks(int ranks, char** argv) {
  if (ranks == 0) return absl::OkStatus();
  const std::string wanted = absl::StrCat(ranks);
  if (IsRank()) {
    if (wanted == RanksOfJob()) return absl::OkStatus();
    return InvalidField(Reason::kConfigInvalid, "np", wanted,
                        absl::StrCat("mpirun started ", RanksOfJob()));
  }
  std::error_code error;
  std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) self = argv[0];
  std::vector<std::string> words = {"mpirun",    "-np",  wanted, "--oversubscribe",
                                    "--bind-to", "none", self};
  for (char** arg = argv + 1; *arg != nullptr; ++arg) words.emplace_back(*arg);
  std::vector<char*> args;
  for (std::string& word : words) args.push_back(word.data());
  args.push_back(nullptr);
  // As lora-worker does: ranks that wait let others run.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  execvp(args[0], args.data());
  return absl::NotFoundError(absl::StrCat("mpirun: ", std::strerror(errno)));
}

}  // namespace rootstock
