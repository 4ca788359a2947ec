#include "coordinator/content/store_ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "common/base/status.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kCondemned[] = "condemned";
constexpr char kUnknown[] = "unknown";

// Empty from then on; whether it is new.
absl::StatusOr<bool> Touch(const fs::path& file) {
  int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool is_new = fd >= 0;
  if (!is_new && errno == EEXIST) fd = open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return StoreError(file, errno);
  close(fd);
  return is_new;
}

std::string WordIn(const fs::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

}  // namespace

absl::Status StoreLedger::Make() {
  std::error_code error;
  fs::create_directories(directory_, error);
  return error ? StoreError(directory_, error.value()) : absl::OkStatus();
}

absl::StatusOr<StoreLedger::Found> StoreLedger::Open(const std::set<Digest>& keep,
                                                     std::chrono::hours grace) {
  RETURN_IF_ERROR(Make());
  const auto oldest = fs::file_time_type::clock::now() - grace;
  std::error_code error;
  std::set<Digest> marked;
  Found found;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    if (digest) marked.insert(*digest);
  }
  if (error) return StoreError(directory_, error.value());
  for (const Digest& digest : marked) {
    if (keep.contains(digest)) continue;
    const fs::path file = directory_ / digest.Hex();
    const std::string word = WordIn(file);
    if (word == kCondemned || grace.count() == 0 ||
        (word == kUnknown && IsAtLeastAsOld(file, oldest))) {
      found.gone.insert(digest);
    } else {
      ++found.unknown;
      if (word != kUnknown) std::ofstream(file) << kUnknown;
    }
  }
  for (const Digest& digest : keep) {
    std::error_code absent;
    const uint64_t bytes = fs::file_size(directory_ / digest.Hex(), absent);
    if (absent || bytes > 0) RETURN_IF_ERROR(Touch(directory_ / digest.Hex()).status());
  }
  RETURN_IF_ERROR(SyncDirectory(directory_));
  return found;
}

absl::StatusOr<bool> StoreLedger::Mark(const Digest& digest) {
  ASSIGN_OR_RETURN(const bool is_new, Touch(directory_ / digest.Hex()));
  if (is_new) RETURN_IF_ERROR(SyncDirectory(directory_));
  return is_new;
}

void StoreLedger::Condemn(const Digest& digest) {
  // Only into a mark that is there: its content may be gone, and the mark with it.
  std::fstream(directory_ / digest.Hex(), std::ios::in | std::ios::out) << kCondemned;
}

absl::Status StoreLedger::Unmark(const Digest& digest) {
  std::error_code error;
  fs::remove(directory_ / digest.Hex(), error);
  return error ? StoreError(directory_, error.value()) : absl::OkStatus();
}

}  // namespace rootstock
