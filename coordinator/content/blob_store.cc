#include "coordinator/content/blob_store.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/objects/blob_key.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/store_error.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// Names the object store that holds all that is on disk.
constexpr char kRemoteFile[] = ".object-store";

// One for each object store that this disk has been a cache of.
std::string LedgerName(const std::string& remote_name) {
  return ".stored-" + Sha256Of(remote_name).Short();
}

absl::Status Unlink(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
  return error ? StoreError(file, error.value()) : absl::OkStatus();
}

}  // namespace

BlobStore::BlobStore(fs::path directory, BlobStoreOptions options)
    : directory_(std::move(directory)),
      options_(std::move(options)),
      room_(options_.room ? options_.room : RoomBesideTheRegistry(directory_)),
      ledger_(directory_ / LedgerName(options_.remote_name)),
      unlinks_([this](const Digest& digest) { return TakeOff(digest); }, options_.removal_retry) {
  if (!options_.remote) return;
  removals_ = std::make_unique<RemovalQueue>(
      [this](const Digest& digest) { return RemoveRemote(digest); }, options_.removal_retry);
}

BlobStore::~BlobStore() { unlinks_.Drain(); }

fs::path BlobStore::PathOf(const Digest& digest) const { return directory_ / digest.Hex(); }

absl::Status BlobStore::Open(const std::set<Digest>& keep) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return StoreError(directory_, error.value());
  UnknownBlobs unknown(directory_, options_.unknown_grace);
  RETURN_IF_ERROR(unknown.Open(keep));
  RETURN_IF_ERROR(FindBlobs(keep, unknown));
  StoreLedger::Found stored;
  if (options_.remote) {
    RETURN_IF_ERROR(FillRemote());
    ASSIGN_OR_RETURN(stored, ledger_.Open(keep, options_.unknown_grace));
    for (const Digest& digest : stored.gone) removals_->Add(digest);
  } else {
    RETURN_IF_ERROR(Unlink(directory_ / kRemoteFile));
  }
  TellUnknown(unknown.count(), stored.unknown);
  return absl::OkStatus();
}

void BlobStore::TellUnknown(const ContentCount& on_disk, size_t in_store) const {
  if (on_disk.contents + in_store == 0) return;
  LogWarning("the registry does not know ", on_disk.contents, " contents (", on_disk.bytes,
             " bytes) that lie in ", (directory_ / ".unknown").string(), " and ", in_store,
             " in the object store. A crash leaves some; is registry.db an older copy, or without "
             "its registry.db-wal? They are removed ",
             options_.unknown_grace.count() / 24,
             " days after they were first seen, or with --discard-unknown-content");
}

absl::Status BlobStore::FindBlobs(const std::set<Digest>& keep, UnknownBlobs& unknown) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, Digest>> found;
  std::vector<Digest> strangers;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    std::error_code ignored;
    if (it->path().filename() == kRemoteFile || it->is_directory(ignored)) continue;
    if (digest && keep.contains(*digest)) {
      found.emplace_back(fs::last_write_time(it->path(), ignored), *digest);
    } else if (digest) {
      strangers.push_back(*digest);
    } else {
      fs::remove(it->path(), ignored);
    }
  }
  if (error) return StoreError(directory_, error.value());
  for (const Digest& digest : strangers) unknown.SetAside(digest);
  std::sort(found.begin(), found.end());
  const std::lock_guard lock(mutex_);
  for (const auto& [time, digest] : found) {
    std::error_code ignored;
    Add(digest, fs::file_size(PathOf(digest), ignored));
  }
  return absl::OkStatus();
}

// Only what the object store holds may leave the disk. Nobody else is about yet.
absl::Status BlobStore::FillRemote() {
  const fs::path file = directory_ / kRemoteFile;
  std::string known;
  std::getline(std::ifstream(file), known);
  if (known == options_.remote_name) return absl::OkStatus();
  RETURN_IF_ERROR(options_.remote->Create());
  RETURN_IF_ERROR(ledger_.Make());
  size_t done = 0;
  for (auto& [digest, entry] : entries_) {
    const absl::StatusOr<Digest> got = DigestOfFile(PathOf(digest));
    if (!got.ok() && !absl::IsDataLoss(got.status())) return got.status();
    if (got.ok() && *got == digest) {
      RETURN_IF_ERROR(PutRemote(digest, /*was_to_go=*/false));
    } else {
      entry.is_bad = true;
      LogError("content ", digest.Short(), " is spoilt; it is not put into the object store");
    }
    if (++done % 100 == 0)
      LogInfo("object store: ", done, " of ", entries_.size(), " contents put");
  }
  return WriteDurably(file, options_.remote_name);
}

absl::Status BlobStore::PutRemote(const Digest& digest, bool was_to_go) {
  ASSIGN_OR_RETURN(const bool is_new, ledger_.Mark(digest));
  const absl::Status put = options_.remote->Put(BlobKey(digest), PathOf(digest));
  // It may have got there all the same.
  if (!put.ok() && (is_new || was_to_go)) removals_->Add(digest);
  return put;
}

absl::Status BlobStore::TakeOff(const Digest& digest) {
  bool condemned = false;
  {
    const std::lock_guard lock(mutex_);
    condemned = removed_.erase(digest) > 0;
  }
  if (condemned) ledger_.Condemn(digest);
  return Unlink(PathOf(digest));
}

absl::Status BlobStore::RemoveRemote(const Digest& digest) {
  ledger_.Condemn(digest);
  RETURN_IF_ERROR(options_.remote->Remove(BlobKey(digest)));
  return ledger_.Unmark(digest);
}

absl::Status BlobStore::Put(const Digest& digest, const std::string& bytes) {
  const absl::Status put = Alone(digest, [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckBudget(digest, bytes.size()));
    RETURN_IF_ERROR(MakeRoom(digest, bytes.size()));
    unlinks_.Forget(digest);
    const bool was_to_go = removals_ && removals_->Forget(digest);
    absl::Status put = WriteDurably(PathOf(digest), bytes);
    if (put.ok() && options_.remote) {
      put = PutRemote(digest, was_to_go);
    } else if (was_to_go) {
      removals_->Add(digest);
    }
    if (put.ok()) {
      Stored(digest, bytes.size());
    } else {
      Undo(digest);
    }
    return put;
  });
  if (put.ok()) return put;
  LogWarning("content ", digest.Short(), " was not stored: ", std::string(put.message()));
  return WithoutUri(put, "data", digest.Short());
}

absl::Status BlobStore::MakeRoom(const Digest& digest, uint64_t bytes) {
  for (;;) {
    absl::Status enough = CheckRoom(room_, bytes, "data", digest.Short());
    if (enough.ok() || !options_.remote) return enough;
    const uint64_t room = room_();
    {
      const std::lock_guard lock(mutex_);
      const bool in_vain = bytes - std::min(bytes, room) > bytes_;
      if (in_vain || !DropOldest()) return enough;
    }
    unlinks_.Drain();
  }
}

absl::Status BlobStore::CheckBudget(const Digest& digest, uint64_t bytes) const {
  if (options_.remote || options_.max_bytes == 0) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  const uint64_t others = bytes_ - (it == entries_.end() ? 0 : it->second.bytes);
  if (others + bytes <= options_.max_bytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQuota, "data", digest.Short(),
                   absl::StrCat("its ", bytes, " bytes and the ", others,
                                " that are stored exceed --blob-bytes, ", options_.max_bytes));
}

void BlobStore::Undo(const Digest& digest) {
  {
    const std::lock_guard lock(mutex_);
    if (entries_.contains(digest)) return;  // was there before
    unlinks_.Add(digest);
  }
  unlinks_.Drain();
}

void BlobStore::Stored(const Digest& digest, uint64_t bytes) {
  const std::optional<FileStamp> stamp = StampOf(PathOf(digest));
  {
    const std::lock_guard lock(mutex_);
    lost_.erase(digest);
    removed_.erase(digest);
    Add(digest, bytes).verified = stamp;
    // Only what the object store holds too may go.
    if (!options_.remote || options_.max_bytes == 0) return;
    while (bytes_ > options_.max_bytes && DropOldest()) continue;
  }
  unlinks_.Drain();
}

BlobStore::Entry& BlobStore::Add(const Digest& digest, uint64_t bytes) {
  Drop(digest);
  Entry& entry = entries_[digest];
  entry.use = uses_.insert(uses_.end(), digest);
  entry.bytes = bytes;
  entry.number = ++next_number_;
  bytes_ += bytes;
  return entry;
}

void BlobStore::Drop(const Digest& digest) {
  const auto it = entries_.find(digest);
  if (it == entries_.end()) return;
  bytes_ -= it->second.bytes;
  uses_.erase(it->second.use);
  entries_.erase(it);
}

bool BlobStore::DropOldest() {
  const auto idle = std::find_if(uses_.begin(), uses_.end(),
                                 [&](const Digest& digest) { return !busy_.contains(digest); });
  if (idle == uses_.end()) return false;
  const Digest digest = *idle;
  unlinks_.Add(digest);
  Drop(digest);
  return true;
}

void BlobStore::Remove(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  Drop(digest);
  lost_.erase(digest);
  if (removals_) removed_.insert(digest);
  unlinks_.Add(digest);
  if (removals_) removals_->Add(digest);
}

bool BlobStore::IsOnDisk(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(digest);
}

bool BlobStore::Holds(const Digest& digest, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  return it != entries_.end() && it->second.bytes == bytes && !it->second.is_bad;
}

bool BlobStore::IsLost(const Digest& digest, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (lost_.contains(digest)) return true;
  const auto it = entries_.find(digest);
  if (it == entries_.end()) return options_.remote == nullptr;
  return it->second.is_bad || (it->second.bytes != bytes && options_.remote == nullptr);
}

void BlobStore::Cancel() {
  if (options_.remote) options_.remote->Cancel();
}

}  // namespace rootstock
