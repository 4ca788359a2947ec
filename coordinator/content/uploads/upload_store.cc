#include "coordinator/content/uploads/upload_store.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/uploads/upload_files.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kConfig[] = "adapter_config.json";
constexpr char kWeights[] = "adapter_model.safetensors";
constexpr size_t kIdDigits = 32;

absl::Status BadFile(Reason reason, const std::string& name, const std::string& why) {
  return InvalidField(reason, "files", name, why);
}

absl::Status UnknownUpload(const std::string& id) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kInvalidArgument, "upload_id", id,
                   "no such upload; it may have expired");
}

// An id is also a directory's name.
bool IsId(const std::string& id) {
  return id.size() == kIdDigits && std::all_of(id.begin(), id.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string IdOf(const std::string& tenant, const std::vector<UploadFile>& files) {
  std::string all = tenant;
  for (const UploadFile& file : files) {
    absl::StrAppend(&all, std::string(1, '\0'), file.name, ":", file.bytes, ":", file.sha256.Hex());
  }
  return Sha256Of(all).Hex().substr(0, kIdDigits);
}

// What no other name and no later try can change.
bool IsOfContent(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return absl::IsInvalidArgument(status) && detail && detail->reason != Reason::kInvalidArgument;
}

absl::Status InUse(const std::string& id) {
  return MakeError(absl::StatusCode::kAborted, Reason::kInvalidArgument, "upload_id", id,
                   "another call works on it");
}

}  // namespace

UploadStore::UploadStore(fs::path dir, UploadLimits limits, Clock clock, DiskRoom room)
    : dir_(std::move(dir)),
      limits_(limits),
      clock_(std::move(clock)),
      room_(room ? std::move(room) : RoomBesideTheRegistry(dir_)),
      index_(limits) {}
UploadStore::~UploadStore() = default;

absl::Status UploadStore::Open() {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return StoreError(dir_, error.value());
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    Learn(it->path());
  }
  if (error) return StoreError(dir_, error.value());
  Expire();
  return absl::OkStatus();
}

// Before anybody else is about.
void UploadStore::Learn(const fs::path& dir) {
  auto read = ReadManifest(dir);
  if (!read.ok()) {
    LogWarning("uploads: ", dir.filename().string(),
               " is left as it is: ", std::string(read.status().message()));
    return;
  }
  std::optional<UploadManifest> manifest = *std::move(read);
  std::error_code ignored;
  // The id follows from what a manifest says: a spoilt one is no other's upload.
  if (!manifest || !IsId(dir.filename()) ||
      IdOf(manifest->tenant, manifest->files) != dir.filename()) {
    fs::remove_all(dir, ignored);
    return;
  }
  UploadState state{dir.filename(), std::move(manifest->files)};
  for (UploadFile& file : state.files) file.received = ReceivedOf(dir / file.name, file.bytes);
  const UploadIndex::Time used = LastUse(dir, state.files);
  index_.Add({std::move(manifest->tenant), std::move(state), used, /*busy=*/false, /*there=*/true});
}

// An upload lives as long as pieces of it come.
void UploadStore::Expire() {
  std::vector<std::string> old;
  {
    const std::lock_guard lock(mutex_);
    old = index_.IdleSince(clock_() - limits_.expires);
    for (const std::string& id : old) index_.Find(id)->busy = true;
  }
  for (const std::string& id : old) {
    LogInfo("uploads: forgetting ", id, ", unfinished");
    Drop(id);
  }
}

void UploadStore::Drop(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    index_.Find(id)->there = false;
  }
  std::error_code error;
  fs::remove_all(PathOf(id), error);
  if (error) LogWarning("uploads: ", id, " stays until the next start: ", error.message());
  const std::lock_guard lock(mutex_);
  index_.Erase(id);
}

absl::Status UploadStore::CheckFiles(const std::vector<UploadFile>& files) const {
  std::set<std::string> names;
  for (const UploadFile& file : files) {
    if (file.name.ends_with(".bin") || file.name.ends_with(".pt")) {
      return BadFile(Reason::kPickle, file.name, "pickled weights are not read");
    }
    if (file.name != kConfig && file.name != kWeights) {
      return BadFile(Reason::kPathInvalid, file.name,
                     absl::StrCat("only ", kConfig, " and ", kWeights, " are taken"));
    }
    if (!names.insert(file.name).second) return BadFile(Reason::kDuplicate, file.name, "twice");
    const uint64_t most =
        file.name == kConfig ? limits_.max_config_bytes : limits_.max_weights_bytes;
    if (file.bytes == 0 || file.bytes > most) {
      return BadFile(Reason::kSizeLimit, file.name,
                     absl::StrCat(file.bytes, " bytes; from 1 to ", most, " are taken"));
    }
  }
  if (names.size() == 2) return absl::OkStatus();
  return BadFile(Reason::kConfigInvalid, files.empty() ? "" : files[0].name,
                 absl::StrCat("both ", kConfig, " and ", kWeights, " are needed"));
}

absl::StatusOr<UploadState> UploadStore::Start(const std::string& tenant,
                                               std::vector<UploadFile> files) {
  RETURN_IF_ERROR(CheckFiles(files));
  std::sort(files.begin(), files.end(),
            [](const UploadFile& a, const UploadFile& b) { return a.name < b.name; });
  UploadState state;
  state.id = IdOf(tenant, files);
  state.files = std::move(files);
  for (UploadFile& file : state.files) file.received = 0;
  Expire();
  ASSIGN_OR_RETURN(std::optional<UploadState> known, FindOrAdd(tenant, state));
  if (known) return *std::move(known);
  absl::Status created = CheckSpace(state);
  if (created.ok()) created = Create(tenant, state);
  if (!created.ok()) {
    Drop(state.id);
    return created;
  }
  const std::lock_guard lock(mutex_);
  UploadIndex::Entry* const entry = index_.Find(state.id);
  entry->there = true;
  entry->busy = false;
  return state;
}

absl::StatusOr<std::optional<UploadState>> UploadStore::FindOrAdd(const std::string& tenant,
                                                                  const UploadState& state) {
  const std::lock_guard lock(mutex_);
  if (const UploadIndex::Entry* known = index_.Find(state.id)) {
    if (!known->there) return InUse(state.id);
    return known->state;
  }
  RETURN_IF_ERROR(index_.CheckNew(tenant, state));
  index_.Add({tenant, state, clock_(), /*busy=*/true, /*there=*/false});
  return std::nullopt;
}

absl::Status UploadStore::CheckSpace(const UploadState& state) const {
  uint64_t bytes = 0;
  for (const UploadFile& file : state.files) bytes += file.bytes;
  return CheckRoom(room_, bytes, "files", kWeights);
}

absl::Status UploadStore::Create(const std::string& tenant, const UploadState& state) {
  const fs::path dir = PathOf(state.id);
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return StoreError(dir, error.value());
  return WriteManifest(dir, {tenant, state.files});
}

absl::StatusOr<UploadState> UploadStore::Get(const std::string& tenant,
                                             const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const UploadIndex::Entry* const entry = index_.Find(id);
  if (entry == nullptr || !entry->there || entry->tenant != tenant) return UnknownUpload(id);
  return entry->state;
}

absl::StatusOr<std::unique_ptr<UploadStore::Lease>> UploadStore::Take(const std::string& tenant,
                                                                      const std::string& id) {
  const std::lock_guard lock(mutex_);
  UploadIndex::Entry* const entry = index_.Find(id);
  if (entry == nullptr || !entry->there || entry->tenant != tenant) return UnknownUpload(id);
  if (std::exchange(entry->busy, true)) return InUse(id);
  return std::make_unique<Lease>(*this, entry->state);
}

UploadStore::Lease::~Lease() {
  const std::lock_guard lock(store_.mutex_);
  if (!is_gone_) store_.index_.Find(state_.id)->busy = false;
}

void UploadStore::Lease::Drop() {
  store_.Drop(state_.id);
  is_gone_ = true;
}

absl::Status UploadStore::Lease::Take(const std::string& file, uint64_t bytes) {
  const std::lock_guard lock(store_.mutex_);
  return store_.index_.Take(*store_.index_.Find(state_.id), file, bytes, store_.clock_());
}

void UploadStore::Lease::GiveBack(const std::string& file, uint64_t bytes) {
  const std::lock_guard lock(store_.mutex_);
  store_.index_.GiveBack(*store_.index_.Find(state_.id), file, bytes);
}

absl::StatusOr<std::unique_ptr<UploadStore::Writer>> UploadStore::Write(const std::string& tenant,
                                                                        const std::string& id) {
  ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, Take(tenant, id));
  return std::unique_ptr<Writer>(new Writer(std::move(lease), PathOf(id)));
}

absl::Status UploadStore::Finish(const std::string& tenant, const std::string& id,
                                 const std::function<absl::Status(const fs::path&)>& use) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Lease> lease, Take(tenant, id));
  for (const UploadFile& file : lease->state().files) {
    if (file.received == file.bytes) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kTruncated, "files", file.name,
                     absl::StrCat(file.received, " of ", file.bytes, " bytes came so far"));
  }
  const absl::Status used = use(PathOf(id));
  if (used.ok() || IsOfContent(used)) lease->Drop();
  return used;
}

absl::Status UploadStore::Abort(const std::string& tenant, const std::string& id) {
  const absl::StatusOr<std::unique_ptr<Lease>> lease = Take(tenant, id);
  if (absl::IsNotFound(lease.status())) return absl::OkStatus();
  RETURN_IF_ERROR(lease.status());
  (*lease)->Drop();
  return absl::OkStatus();
}

}  // namespace rootstock
