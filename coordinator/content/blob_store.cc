#include "coordinator/content/blob_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// Names the object store that holds all that is on disk.
constexpr char kRemoteFile[] = ".object-store";

std::string KeyOf(const Digest& digest) { return "blobs/" + digest.Hex(); }

absl::Status NoContent(const Digest& digest) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "digest", digest.Short(),
                   "its stored content is missing");
}

}  // namespace

BlobStore::BlobStore(fs::path directory, BlobStoreOptions options)
    : directory_(std::move(directory)), options_(std::move(options)) {
  if (options_.remote) remover_ = std::thread([this] { RemoveFromRemote(); });
}

BlobStore::~BlobStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (remover_.joinable()) remover_.join();
}

fs::path BlobStore::PathOf(const Digest& digest) const { return directory_ / digest.Hex(); }

absl::Status BlobStore::Open(const std::set<Digest>& keep) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return StoreError(directory_, error.value());
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<fs::file_time_type, Digest>> found;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end;
       it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    std::error_code ignored;
    if (it->path().filename() == kRemoteFile) continue;
    if (digest && keep.contains(*digest)) {
      found.emplace_back(fs::last_write_time(it->path(), ignored), *digest);
    } else {
      fs::remove(it->path(), ignored);
    }
  }
  if (error) return StoreError(directory_, error.value());
  std::sort(found.begin(), found.end());
  for (const auto& [time, digest] : found) {
    std::error_code ignored;
    Add(digest, fs::file_size(PathOf(digest), ignored));
  }
  return FillRemote();
}

// Under the mutex. Only what the object store holds may leave the disk.
absl::Status BlobStore::FillRemote() {
  const fs::path file = directory_ / kRemoteFile;
  if (!options_.remote) {
    std::error_code ignored;
    fs::remove(file, ignored);
    return absl::OkStatus();
  }
  std::string known;
  std::getline(std::ifstream(file), known);
  if (known == options_.remote_name) return absl::OkStatus();
  size_t done = 0;
  for (const auto& [digest, entry] : entries_) {
    RETURN_IF_ERROR(options_.remote->Put(KeyOf(digest), PathOf(digest)));
    if (++done % 100 == 0)
      LogInfo("object store: ", done, " of ", entries_.size(), " contents put");
  }
  return WriteDurably(file, options_.remote_name);
}

absl::Status BlobStore::Put(const Digest& digest, const std::string& bytes) {
  {
    std::unique_lock lock(mutex_);
    // Its removal may be under way.
    changed_.wait(lock, [&] { return removing_ != digest; });
    removals_.erase(digest);
    if (!options_.remote && options_.max_bytes > 0 && bytes_ + bytes.size() > options_.max_bytes) {
      return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQuota, "data", digest.Short(),
                       absl::StrCat("its ", bytes.size(), " bytes and the ", bytes_,
                                    " that are stored exceed --blob-bytes, ", options_.max_bytes));
    }
  }
  RETURN_IF_ERROR(WriteDurably(PathOf(digest), bytes));
  if (options_.remote) {
    const absl::Status put = options_.remote->Put(KeyOf(digest), PathOf(digest));
    if (!put.ok()) {
      std::error_code ignored;
      fs::remove(PathOf(digest), ignored);
      return put;
    }
  }
  const std::lock_guard lock(mutex_);
  Add(digest, bytes.size());
  MakeRoom(digest);
  return absl::OkStatus();
}

absl::StatusOr<std::ifstream> BlobStore::Read(const Digest& digest) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !fetching_.contains(digest); });
      // Opened under the mutex: what is dropped later stays readable.
      errno = 0;
      if (std::ifstream in(PathOf(digest), std::ios::binary); in) {
        Touch(digest);
        return in;
      }
      // Too many open files, say: that says nothing of the content.
      if (errno != ENOENT) {
        return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "digest", digest.Short(),
                         absl::StrCat("can't be read: ", std::strerror(errno)));
      }
      Drop(digest);
      if (!options_.remote) return NoContent(digest);
      fetching_.insert(digest);
    }
    const absl::Status fetched = Fetch(digest);
    const std::lock_guard lock(mutex_);
    fetching_.erase(digest);
    changed_.notify_all();
    RETURN_IF_ERROR(fetched);
  }
}

absl::Status BlobStore::Fetch(const Digest& digest) {
  DurableFile file(PathOf(digest));
  Sha256 hash;
  uint64_t bytes = 0;
  RETURN_IF_ERROR(options_.remote->Get(KeyOf(digest), UINT64_MAX, [&](std::string_view more) {
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(more.data()), more.size()));
    bytes += more.size();
    return file.Append(more);
  }));
  if (const Digest got = hash.Finish(); got != digest) {
    return MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest", digest.Short(),
                     absl::StrCat("the object store has ", got.Short(), " in its place"));
  }
  RETURN_IF_ERROR(file.Commit());
  const std::lock_guard lock(mutex_);
  Add(digest, bytes);
  MakeRoom(digest);
  return absl::OkStatus();
}

void BlobStore::Touch(const Digest& digest) {
  const auto it = entries_.find(digest);
  if (it != entries_.end()) uses_.splice(uses_.end(), uses_, it->second.use);
}

void BlobStore::Add(const Digest& digest, uint64_t bytes) {
  const auto [it, fresh] = entries_.try_emplace(digest);
  if (fresh) {
    it->second.use = uses_.insert(uses_.end(), digest);
  } else {
    bytes_ -= it->second.bytes;
  }
  it->second.bytes = bytes;
  bytes_ += bytes;
  Touch(digest);
}

void BlobStore::Drop(const Digest& digest) {
  std::error_code ignored;
  fs::remove(PathOf(digest), ignored);
  const auto it = entries_.find(digest);
  if (it == entries_.end()) return;
  bytes_ -= it->second.bytes;
  uses_.erase(it->second.use);
  entries_.erase(it);
}

// Only what the object store holds too may go.
void BlobStore::MakeRoom(const Digest& keep) {
  if (!options_.remote || options_.max_bytes == 0) return;
  while (bytes_ > options_.max_bytes && uses_.front() != keep) Drop(Digest(uses_.front()));
}

void BlobStore::Remove(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  Drop(digest);
  if (!options_.remote) return;
  removals_.insert(digest);
  changed_.notify_all();
}

void BlobStore::RemoveFromRemote() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !removals_.empty(); });
    if (stopping_) return;
    const Digest digest = *removals_.begin();
    removals_.erase(removals_.begin());
    removing_ = digest;
    lock.unlock();
    const absl::Status removed = options_.remote->Remove(KeyOf(digest));
    if (!removed.ok()) {
      LogWarning("content ", digest.Short(),
                 " stays in the object store: ", std::string(removed.message()));
    }
    lock.lock();
    removing_.reset();
    changed_.notify_all();
  }
}

bool BlobStore::Holds(const Digest& digest, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  return it != entries_.end() && it->second.bytes == bytes;
}

bool BlobStore::IsLost(const Digest& digest, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(digest);
  if (it == entries_.end()) return options_.remote == nullptr;
  return it->second.bytes != bytes;
}

void BlobStore::Cancel() {
  if (options_.remote) options_.remote->Cancel();
}

}  // namespace rootstock
