#include "coordinator/content/upload_store.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/upload_files.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "upload.json";
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

std::string ManifestOf(const std::string& tenant, const UploadState& state) {
  nlohmann::json files = nlohmann::json::array();
  for (const UploadFile& file : state.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256.Hex()}});
  }
  return nlohmann::json{{"tenant", tenant}, {"files", std::move(files)}}.dump();
}

struct Manifest {
  std::string tenant;
  std::vector<UploadFile> files;
};
// Nothing for what this store has not written, or not to its end.
std::optional<Manifest> ReadManifest(const fs::path& dir) {
  std::ifstream in(dir / kManifest);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  Manifest out;
  out.tenant = json.value("tenant", "");
  for (const nlohmann::json& file : json.value("files", nlohmann::json::array())) {
    const auto sha256 = Digest::FromHex(file.value("sha256", ""));
    if (!sha256) return std::nullopt;
    out.files.push_back({file.value("name", ""), file.value("bytes", uint64_t{0}), *sha256});
  }
  return out;
}

}  // namespace

bool UploadState::is_complete() const {
  return std::all_of(files.begin(), files.end(),
                     [](const UploadFile& f) { return f.received == f.bytes; });
}

UploadStore::UploadStore(fs::path dir, UploadLimits limits)
    : dir_(std::move(dir)), limits_(limits) {}
UploadStore::~UploadStore() = default;

absl::Status UploadStore::Open() {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return StoreError(dir_, error.value());
  const std::lock_guard lock(mutex_);
  Expire();
  return absl::OkStatus();
}

// Under the mutex. An upload lives as long as pieces of it come.
void UploadStore::Expire() {
  const auto oldest = fs::file_time_type::clock::now() - limits_.expires;
  std::error_code error;
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    if (busy_.contains(it->path().filename().string())) continue;
    std::error_code ignored;
    auto newest = fs::file_time_type::min();
    for (const char* name : {kManifest, kConfig, kWeights}) {
      for (const fs::path& path : {it->path() / name, PartOf(it->path() / name)}) {
        if (!fs::exists(path, ignored)) continue;
        newest = std::max(newest, fs::last_write_time(path, ignored));
      }
    }
    if (newest >= oldest && ReadManifest(it->path())) continue;
    LogInfo("uploads: forgetting ", it->path().filename().string(), ", unfinished");
    fs::remove_all(it->path(), ignored);
  }
}

uint64_t UploadStore::Announced() const {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    const std::optional<Manifest> manifest = ReadManifest(it->path());
    if (!manifest) continue;
    for (const UploadFile& file : manifest->files) bytes += file.bytes;
  }
  return bytes;
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
  const std::lock_guard lock(mutex_);
  Expire();
  if (auto known = Read(tenant, state.id); known.ok()) return known;
  uint64_t bytes = Announced();
  for (UploadFile& file : state.files) {
    bytes += file.bytes;
    file.received = 0;
  }
  if (bytes > limits_.max_bytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQuota, "files", "",
                     absl::StrCat("with it the unfinished uploads would be ", bytes,
                                  " bytes, more than the ", limits_.max_bytes, " allowed"));
  }
  RETURN_IF_ERROR(Create(tenant, state));
  return state;
}

absl::Status UploadStore::Create(const std::string& tenant, const UploadState& state) {
  const fs::path dir = PathOf(state.id);
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return StoreError(dir, error.value());
  const absl::Status written = WriteDurably(dir / kManifest, ManifestOf(tenant, state));
  if (!written.ok()) fs::remove_all(dir, error);
  return written;
}

absl::StatusOr<UploadState> UploadStore::Read(const std::string& tenant,
                                              const std::string& id) const {
  if (!IsId(id)) return UnknownUpload(id);
  std::optional<Manifest> manifest = ReadManifest(PathOf(id));
  if (!manifest || manifest->tenant != tenant) return UnknownUpload(id);
  UploadState state{id, std::move(manifest->files)};
  for (UploadFile& file : state.files) {
    file.received = ReceivedOf(PathOf(id) / file.name, file.bytes);
  }
  return state;
}

absl::StatusOr<UploadState> UploadStore::Get(const std::string& tenant,
                                             const std::string& id) const {
  return Read(tenant, id);
}

absl::StatusOr<std::unique_ptr<UploadStore::Lease>> UploadStore::Take(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (!busy_.insert(id).second) {
    return MakeError(absl::StatusCode::kAborted, Reason::kInvalidArgument, "upload_id", id,
                     "another call works on it");
  }
  return std::make_unique<Lease>(*this, id);
}

absl::StatusOr<std::unique_ptr<UploadStore::Writer>> UploadStore::Write(const std::string& tenant,
                                                                        const std::string& id) {
  RETURN_IF_ERROR(Read(tenant, id).status());
  ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, Take(id));
  ASSIGN_OR_RETURN(UploadState state, Read(tenant, id));  // as the writer before has left it
  return std::unique_ptr<Writer>(new Writer(std::move(lease), PathOf(id), std::move(state)));
}

absl::Status UploadStore::Finish(const std::string& tenant, const std::string& id,
                                 const std::function<absl::Status(const fs::path&)>& use) {
  RETURN_IF_ERROR(Read(tenant, id).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<Lease> lease, Take(id));
  ASSIGN_OR_RETURN(const UploadState state, Read(tenant, id));
  for (const UploadFile& file : state.files) {
    if (file.received == file.bytes) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kTruncated, "files", file.name,
                     absl::StrCat(file.received, " of ", file.bytes, " bytes came so far"));
  }
  RETURN_IF_ERROR(use(PathOf(id)));
  std::error_code ignored;
  fs::remove_all(PathOf(id), ignored);
  return absl::OkStatus();
}

absl::Status UploadStore::Abort(const std::string& tenant, const std::string& id) {
  if (!Read(tenant, id).ok()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Lease> lease, Take(id));
  std::error_code ignored;
  fs::remove_all(PathOf(id), ignored);
  return absl::OkStatus();
}

}  // namespace rootstock
