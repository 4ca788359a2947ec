// How a BlobStore's content is read: verified, or taken anew.
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/objects/blob_key.h"
#include "coordinator/content/blob_store.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/store_error.h"

namespace rootstock {
namespace {

absl::Status NoContent(const Digest& digest) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "digest", digest.Short(),
                   "its stored content is missing");
}

absl::Status WrongContent(const Digest& digest, const Digest& got, const std::string& where) {
  return MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", digest.Short(),
                   absl::StrCat(where, " has ", got.Short(), " in its place"));
}

}  // namespace

absl::StatusOr<std::ifstream> BlobStore::Read(const Digest& digest, uint64_t bytes) {
  for (;;) {
    std::optional<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = entries_.find(digest); it != entries_.end()) {
        Touch(it->second);
        entry = it->second;
      }
    }
    if (!entry) {
      if (!options_.remote) return NoContent(digest);
      RETURN_IF_ERROR(Alone(digest, [&] { return Fetch(digest, bytes); }));
      continue;
    }
    errno = 0;
    std::ifstream in(PathOf(digest), std::ios::binary);
    // Too many open files, say: that says nothing of the content.
    if (!in && errno != ENOENT) {
      return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "digest", digest.Short(),
                       absl::StrCat("can't be read: ", std::strerror(errno)));
    }
    if (in && entry->verified && StampOf(PathOf(digest)) == entry->verified) return in;
    RETURN_IF_ERROR(Alone(digest, [&] { return Verify(digest, entry->number); }));
  }
}

absl::Status BlobStore::Alone(const Digest& digest, const std::function<absl::Status()>& work) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_.contains(digest); });
    busy_.insert(digest);
  }
  const absl::Status status = work();
  const std::lock_guard lock(mutex_);
  busy_.erase(digest);
  changed_.notify_all();
  return status;
}

// What is found gone or wrong leaves the disk when the object store has it too.
absl::Status BlobStore::Verify(const Digest& digest, uint64_t number) {
  const std::optional<FileStamp> stamp = StampOf(PathOf(digest));
  if (IsVerified(digest, number, stamp)) return absl::OkStatus();
  const absl::StatusOr<Digest> got = DigestOfFile(PathOf(digest));
  if (absl::IsUnavailable(got.status())) return got.status();
  const bool is_right = got.ok() && *got == digest;
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  if (it == entries_.end() || it->second.number != number) return absl::OkStatus();  // evicted
  it->second.is_bad = !is_right;
  if (is_right) {
    it->second.verified = stamp;
  } else if (absl::IsNotFound(got.status())) {
    Drop(digest);
  } else if (options_.remote) {
    LogWarning("content ", digest.Short(), " is spoilt on disk; it is fetched again");
    Drop(digest);
    unlinks_.Add(digest);
  } else {
    return got.ok() ? WrongContent(digest, *got, "the disk") : got.status();
  }
  return absl::OkStatus();
}

void BlobStore::Doubt(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  if (const auto it = entries_.find(digest); it != entries_.end()) it->second.verified.reset();
}

// By another reader while this one waited, or no longer the entry that it saw.
bool BlobStore::IsVerified(const Digest& digest, uint64_t number,
                           const std::optional<FileStamp>& stamp) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  if (it == entries_.end() || it->second.number != number) return true;
  return stamp && it->second.verified == stamp;
}

absl::Status BlobStore::Fetch(const Digest& digest, uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (entries_.contains(digest)) return absl::OkStatus();  // another reader was first
  }
  unlinks_.Forget(digest);
  DurableFile file(PathOf(digest));
  Sha256 hash;
  uint64_t got_bytes = 0;
  absl::Status status =
      options_.remote->Get(BlobKey(digest), bytes, [&](std::string_view more) -> absl::Status {
        hash.Update(std::span(reinterpret_cast<const uint8_t*>(more.data()), more.size()));
        got_bytes += more.size();
        RETURN_IF_ERROR(MakeRoom(digest, more.size()));
        return file.Append(more);
      });
  if (const auto detail = GetErrorDetail(status); detail && detail->reason == Reason::kSizeLimit) {
    status =
        MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", digest.Short(),
                  absl::StrCat("the object store has more than its ", bytes, " bytes"));
  }
  if (const Digest got = hash.Finish(); status.ok() && got != digest) {
    status = WrongContent(digest, got, "the object store");
  }
  if (absl::IsNotFound(status) || absl::IsDataLoss(status)) {
    const std::lock_guard lock(mutex_);
    lost_.insert(digest);
  }
  if (status.ok()) status = file.Commit();
  if (!status.ok()) {
    LogWarning("content ", digest.Short(), ": ", std::string(status.message()));
    Undo(digest);
    return WithoutUri(status, "digest", digest.Short());
  }
  Stored(digest, got_bytes);
  return absl::OkStatus();
}

}  // namespace rootstock
