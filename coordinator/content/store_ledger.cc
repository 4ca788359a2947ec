#include "coordinator/content/store_ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/base/status.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// Whether it is new.
absl::StatusOr<bool> Touch(const fs::path& file) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno != EEXIST) return StoreError(file, errno);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

}  // namespace

absl::StatusOr<std::set<Digest>> StoreLedger::Open(const std::set<Digest>& keep) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return StoreError(directory_, error.value());
  std::set<Digest> marked, gone;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    if (!digest) continue;
    marked.insert(*digest);
    if (!keep.contains(*digest)) gone.insert(*digest);
  }
  if (error) return StoreError(directory_, error.value());
  for (const Digest& digest : keep) {
    if (!marked.contains(digest)) RETURN_IF_ERROR(Touch(directory_ / digest.Hex()).status());
  }
  RETURN_IF_ERROR(SyncDirectory(directory_));
  return gone;
}

absl::StatusOr<bool> StoreLedger::Mark(const Digest& digest) {
  ASSIGN_OR_RETURN(const bool is_new, Touch(directory_ / digest.Hex()));
  if (is_new) RETURN_IF_ERROR(SyncDirectory(directory_));
  return is_new;
}

absl::Status StoreLedger::Unmark(const Digest& digest) {
  std::error_code error;
  fs::remove(directory_ / digest.Hex(), error);
  return error ? StoreError(directory_, error.value()) : absl::OkStatus();
}

}  // namespace rootstock
