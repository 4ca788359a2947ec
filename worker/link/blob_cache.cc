#include "worker/link/blob_cache.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr size_t kHexLength = 64;  // of a digest

absl::Status IoError(const std::filesystem::path& path, const std::string& text) {
  return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "path", path.string(), text);
}

// Whether the file is there and holds the digest's bytes.
bool Holds(const std::filesystem::path& path, const Digest& digest) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(buffer.data()),
                          static_cast<size_t>(in.gcount())));
  }
  return in.eof() && hash.Finish() == digest;
}

std::string TemporaryName(const Digest& digest) {
  static std::atomic<uint64_t> count{0};
  return absl::StrCat(".", digest.Hex(), ".", getpid(), ".", ++count);
}

// The process that writes the file, or nothing when it is no temporary.
std::optional<pid_t> WriterOf(const std::filesystem::path& path) {
  const std::vector<std::string> parts = absl::StrSplit(path.filename().string(), '.');
  pid_t pid = 0;
  const bool temporary = parts.size() == 4 && parts[0].empty() && parts[1].size() == kHexLength &&
                         absl::SimpleAtoi(parts[2], &pid) && pid > 0;
  return temporary ? std::optional(pid) : std::nullopt;
}

bool IsAlive(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

std::filesystem::path BlobCache::PathOf(const Digest& digest) const { return dir_ / digest.Hex(); }

absl::Status BlobCache::Ensure(const Digest& digest, BlobSource& source) const {
  if (Holds(PathOf(digest), digest)) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) return IoError(dir_, error.message());
  return Download(digest, source);
}

absl::Status BlobCache::Download(const Digest& digest, BlobSource& source) const {
  const std::filesystem::path temporary = dir_ / TemporaryName(digest);
  std::error_code error;
  Sha256 hash;
  absl::Status status;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    status = source.Fetch(digest, [&](const std::string& bytes) {
      hash.Update(bytes);
      out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      return out ? absl::OkStatus() : IoError(temporary, "write failed");
    });
    out.close();
    if (status.ok() && !out) status = IoError(temporary, "write failed");
  }
  if (const Digest got = hash.Finish(); status.ok() && got != digest) {
    status = MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest",
                       digest.Short(), absl::StrCat("the content came as ", got.Short()));
  }
  if (status.ok()) {
    std::filesystem::rename(temporary, PathOf(digest), error);
    if (!error) return absl::OkStatus();
    status = IoError(PathOf(digest), error.message());
  }
  std::filesystem::remove(temporary, error);
  return status;
}

absl::Status BlobCache::Remove(const Digest& digest) const {
  std::error_code error;
  std::filesystem::remove(PathOf(digest), error);
  return error ? IoError(PathOf(digest), error.message()) : absl::OkStatus();
}

void BlobCache::SweepTemporaries() const {
  std::error_code error;  // an absent or unreadable directory has nothing to sweep
  std::vector<std::filesystem::path> left;
  for (std::filesystem::directory_iterator it(dir_, error), end; !error && it != end;
       it.increment(error)) {
    const std::optional<pid_t> writer = WriterOf(it->path());
    if (writer && (*writer == getpid() || !IsAlive(*writer))) left.push_back(it->path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove(path, error);
}

}  // namespace rootstock
