#include "worker/link/blobs/blob_dir.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHexLength = 64;  // of a digest

// The process that writes the file, or nothing when it is no temporary.
std::optional<pid_t> WriterOf(const fs::path& path) {
  const std::vector<std::string> parts = absl::StrSplit(path.filename().string(), '.');
  pid_t pid = 0;
  const bool temporary = parts.size() == 4 && parts[0].empty() && parts[1].size() == kHexLength &&
                         absl::SimpleAtoi(parts[2], &pid) && pid > 0;
  return temporary ? std::optional(pid) : std::nullopt;
}

bool IsAlive(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

std::vector<DirectoryFile> FilesOf(const fs::path& dir) {
  std::vector<DirectoryFile> out;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    DirectoryFile file{it->path(), it->file_size(gone), it->last_write_time(gone)};
    if (!gone) out.push_back(std::move(file));
  }
  return out;
}

uint64_t TotalBytes(const std::vector<DirectoryFile>& files) {
  uint64_t sum = 0;
  for (const DirectoryFile& file : files) sum += file.bytes;
  return sum;
}

uint64_t HalfOfTheDisk(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  const fs::space_info space = fs::space(dir, error);
  return error ? 0 : (space.available + TotalBytes(FilesOf(dir))) / 2;
}

fs::path TemporaryIn(const fs::path& dir, const Digest& digest) {
  static std::atomic<uint64_t> count{0};
  return dir / absl::StrCat(".", digest.Hex(), ".", getpid(), ".", ++count);
}

void RemoveAbandoned(const fs::path& dir) {
  for (const DirectoryFile& file : FilesOf(dir)) {
    const std::optional<pid_t> writer = WriterOf(file.path);
    std::error_code error;
    if (writer && (*writer == getpid() || !IsAlive(*writer))) fs::remove(file.path, error);
  }
}

}  // namespace rootstock
