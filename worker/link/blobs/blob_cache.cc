#include "worker/link/blobs/blob_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/link/blobs/blob_dir.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

}  // namespace

BlobCache::BlobCache(fs::path dir, uint64_t budget_bytes)
    : dir_(std::move(dir)),
      given_(budget_bytes != 0),
      budget_bytes_(given_ ? budget_bytes : HalfOfTheDisk(dir_)) {}

fs::path BlobCache::PathOf(const Digest& digest) const { return dir_ / digest.Hex(); }

bool BlobCache::IsThere(const Digest& digest) const {
  std::error_code error;
  return fs::exists(PathOf(digest), error);
}

absl::StatusOr<CachedBlob> BlobCache::Ensure(const Digest& digest, BlobSource& source,
                                             uint64_t bytes) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !fetching_.contains(digest); });
    fetching_.insert(digest);
  }
  absl::StatusOr<CachedBlob> out;
  auto found = Find(digest);
  if (!found.ok()) out = found.status();
  if (found.ok() && *found != nullptr) {
    out = CachedBlob{FetchSource::kDisk, (*found)->bytes(), *found};
  } else if (found.ok()) {
    out = Download(digest, source, bytes);
  }
  std::lock_guard lock(mutex_);
  if (const auto pin = pinned_.find(digest); out.ok() && pin != pinned_.end()) {
    pin->second = out->lease;
  }
  fetching_.erase(digest);
  changed_.notify_all();
  return out;
}

std::optional<CachedBlob> BlobCache::FindNow(const Digest& digest) {
  {
    std::lock_guard lock(mutex_);
    if (fetching_.contains(digest)) return std::nullopt;
  }
  const auto found = Find(digest);
  if (!found.ok() || *found == nullptr) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (const auto pin = pinned_.find(digest); pin != pinned_.end()) pin->second = *found;
  return CachedBlob{FetchSource::kDisk, (*found)->bytes(), *found};
}

absl::StatusOr<std::shared_ptr<const BlobFile>> BlobCache::Find(const Digest& digest) {
  ASSIGN_OR_RETURN(std::shared_ptr<const BlobFile> file, BlobFile::Open(PathOf(digest)));
  if (file == nullptr) return file;
  {
    std::lock_guard lock(mutex_);
    const auto known = verified_.find(digest);
    if (known != verified_.end() && known->second == file->bytes()) return file;
  }
  const absl::StatusOr<Digest> hash = file->Hash();
  if (!hash.ok() || *hash != digest) return nullptr;  // Download replaces it
  std::lock_guard lock(mutex_);
  verified_[digest] = file->bytes();
  return file;
}

absl::StatusOr<std::unique_ptr<BlobFile>> BlobCache::Reserve(const fs::path& temporary,
                                                             uint64_t bytes) {
  const DirectoryLock lock(dir_);
  // Since the start of this process others may have given the disk room.
  if (!given_ && bytes > budget_bytes_) budget_bytes_ = HalfOfTheDisk(dir_);
  if (bytes > budget_bytes_) {
    const std::string has = absl::StrCat("the adapter has ", bytes, " bytes; ");
    return given_ ? MakeError(absl::StatusCode::kFailedPrecondition, Reason::kTooLarge,
                              kDiskBudgetField, absl::StrCat(budget_bytes_.load()),
                              has + "this group can't serve it without a larger cache")
                  : MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoSpace,
                              kDiskBudgetField, absl::StrCat(budget_bytes_.load()),
                              has + "half of what the disk has free is less");
  }
  uint64_t used = TotalBytes(FilesOf(dir_));
  while (used + bytes > budget_bytes_ && EvictOldest()) {
    used = TotalBytes(FilesOf(dir_));
  }
  if (used + bytes > budget_bytes_) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoSpace, kDiskBudgetField,
                     absl::StrCat(budget_bytes_.load()),
                     absl::StrCat("no room for ", bytes, " bytes: ", used,
                                  " are taken by what is pinned, in use or on its way"));
  }
  auto file = BlobFile::Create(temporary, bytes);
  // A disk smaller than the budget.
  while (!file.ok() && file.status().code() == absl::StatusCode::kResourceExhausted &&
         EvictOldest()) {
    file = BlobFile::Create(temporary, bytes);
  }
  return file;
}

bool BlobCache::EvictOldest() {
  std::vector<DirectoryFile> files = FilesOf(dir_);
  std::sort(files.begin(), files.end(),
            [](const DirectoryFile& a, const DirectoryFile& b) { return a.used < b.used; });
  for (const DirectoryFile& file : files) {
    const std::optional<Digest> digest = Digest::FromHex(file.path.filename().string());
    if (!digest.has_value() || !BlobFile::RemoveIfFree(file.path)) continue;
    Note(*digest, file.bytes, false);
    return true;
  }
  return false;
}

absl::StatusOr<CachedBlob> BlobCache::Download(const Digest& digest, BlobSource& source,
                                               uint64_t bytes) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return DiskError(dir_, error.value());
  const fs::path temporary = TemporaryIn(dir_, digest);
  std::shared_ptr<BlobFile> file;
  Sha256 hash;
  uint64_t got = 0;
  BlobSink sink;
  sink.begin = [&](uint64_t said) -> absl::Status {
    if (bytes != 0 && said != bytes) {
      return MakeError(absl::StatusCode::kDataLoss, Reason::kTruncated, "digest", digest.Short(),
                       absl::StrCat("has ", bytes, " bytes; the source says ", said));
    }
    ASSIGN_OR_RETURN(file, Reserve(temporary, said));
    return absl::OkStatus();
  };
  sink.write = [&](std::string_view piece) {
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(piece.data()), piece.size()));
    got += piece.size();
    if (file == nullptr || got > file->bytes()) {
      return MakeError(absl::StatusCode::kDataLoss, Reason::kTruncated, "digest", digest.Short(),
                       "more content came than was said");
    }
    return file->Write(piece);
  };
  absl::Status status = source.Fetch(digest, sink);
  if (status.ok() && (file == nullptr || got < file->bytes())) {
    status = MakeError(absl::StatusCode::kDataLoss, Reason::kTruncated, "digest", digest.Short(),
                       absl::StrCat("the content ended after ", got, " bytes"));
  }
  if (const Digest came = hash.Finish(); status.ok() && came != digest) {
    status = MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest",
                       digest.Short(), absl::StrCat("the content came as ", came.Short()));
  }
  if (status.ok()) {
    fs::rename(temporary, PathOf(digest), error);
    if (error) status = DiskError(PathOf(digest), error.value());
  }
  if (!status.ok()) {
    fs::remove(temporary, error);
    return status;
  }
  std::lock_guard lock(mutex_);
  verified_[digest] = got;
  changes_.push_back({{digest, Tier::kDisk, got}, true});
  return CachedBlob{source.kind(), got, std::move(file)};
}

absl::Status BlobCache::Read(const Digest& digest, const BlobSink& sink) {
  ASSIGN_OR_RETURN(std::shared_ptr<const BlobFile> file, BlobFile::Open(PathOf(digest)));
  if (file == nullptr) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "digest", digest.Short(),
                     "its content is not on this node; prefetch it first");
  }
  absl::Status taken = sink.begin(file->bytes());
  // To the end in any case: a sink may have found fault with what is spoilt.
  const absl::StatusOr<Digest> hash = file->Read([&](std::string_view piece) {
    if (taken.ok()) taken = sink.write(piece);
  });
  if (hash.ok() && *hash == digest) return taken;
  Discard(digest, *file);
  RETURN_IF_ERROR(hash.status());
  return MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", digest.Short(),
                   absl::StrCat("its file of ", file->bytes(), " bytes was spoilt on this node"));
}

void BlobCache::Discard(const Digest& digest, const BlobFile& spoilt) {
  if (!spoilt.Remove()) return;  // somebody else did
  Note(digest, spoilt.bytes(), false);
  std::lock_guard lock(mutex_);
  if (const auto pin = pinned_.find(digest); pin != pinned_.end()) pin->second = nullptr;
}

absl::StatusOr<uint64_t> BlobCache::Remove(const Digest& digest) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(PathOf(digest), error);
  const bool removed = !error && fs::remove(PathOf(digest), error);
  if (error && error != std::errc::no_such_file_or_directory) {
    return DiskError(PathOf(digest), error.value());
  }
  if (removed) Note(digest, bytes, false);
  std::lock_guard lock(mutex_);
  pinned_.erase(digest);
  return removed ? bytes : 0;
}

void BlobCache::Note(const Digest& digest, uint64_t bytes, bool present) {
  std::lock_guard lock(mutex_);
  if (!present) verified_.erase(digest);
  changes_.push_back({{digest, Tier::kDisk, bytes}, present});
}

void BlobCache::Touch(const Digest& digest) const {
  utimensat(AT_FDCWD, PathOf(digest).c_str(), nullptr, 0);
}

void BlobCache::Pin(const Digest& digest, bool pinned) {
  std::shared_ptr<const BlobFile> file;
  if (auto opened = BlobFile::Open(PathOf(digest)); pinned && opened.ok()) {
    file = *std::move(opened);
  }
  std::lock_guard lock(mutex_);
  if (pinned) pinned_[digest] = std::move(file);
  if (!pinned) pinned_.erase(digest);
}

void BlobCache::UnpinAll() {
  std::lock_guard lock(mutex_);
  pinned_.clear();
}

void BlobCache::SweepTemporaries() const { RemoveAbandoned(dir_); }

std::vector<TierChange> BlobCache::List() const {
  std::vector<TierChange> out;
  for (const DirectoryFile& file : FilesOf(dir_)) {
    const std::optional<Digest> digest = Digest::FromHex(file.path.filename().string());
    if (digest.has_value()) out.push_back({{*digest, Tier::kDisk, file.bytes}, true});
  }
  return out;
}

std::vector<TierChange> BlobCache::TakeChanges() {
  std::lock_guard lock(mutex_);
  return std::exchange(changes_, {});
}

}  // namespace rootstock
