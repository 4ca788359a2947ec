#include "worker/link/blobs/blob_dir.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/link/blobs/blob_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHexLength = 64;  // of a digest

bool IsTemporary(const fs::path& path) {
  const std::vector<std::string> parts = absl::StrSplit(path.filename().string(), '.');
  pid_t pid = 0;
  return parts.size() == 4 && parts[0].empty() && parts[1].size() == kHexLength &&
         absl::SimpleAtoi(parts[2], &pid) && pid > 0;
}

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
  const DirectoryLock lock(dir);  // none is being made
  for (const DirectoryFile& file : FilesOf(dir)) {
    if (IsTemporary(file.path)) BlobFile::RemoveIfFree(file.path);
  }
}

}  // namespace rootstock
