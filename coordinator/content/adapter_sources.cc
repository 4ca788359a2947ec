#include "coordinator/content/adapter_sources.h"

#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/store_error.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigName[] = "adapter_config.json";
constexpr char kWeightsName[] = "adapter_model.safetensors";
constexpr char kPickledName[] = "adapter_model.bin";
constexpr uint64_t kMaxConfigFileBytes = 64 << 10;

// The key under `root` that `uri` names; nothing when it lies elsewhere.
std::optional<std::string> KeyUnder(const StoreUri& root, const StoreUri& uri) {
  if (uri.kind != root.kind || uri.bucket != root.bucket) return std::nullopt;
  if (root.prefix.empty() || root.prefix == "/") {
    return uri.prefix.substr(root.prefix.size());
  }
  if (!uri.prefix.starts_with(root.prefix + "/")) return std::nullopt;
  return uri.prefix.substr(root.prefix.size() + 1);
}

absl::Status NoAdapter(const AskedFor& asked, const std::string& file) {
  return MakeError(absl::StatusCode::kNotFound, Reason::kPathInvalid, asked.field, asked.value,
                   absl::StrCat("there is no ", file));
}

}  // namespace

bool AdapterSources::IsUri(const std::string& path) {
  return path.find("://") != std::string::npos;
}

absl::StatusOr<std::unique_ptr<AdapterSources>> AdapterSources::Open(fs::path scratch,
                                                                     AdapterSourceOptions options) {
  std::error_code error;
  fs::remove_all(scratch, error);
  if (!error) fs::create_directories(scratch, error);
  if (!error) fs::permissions(scratch, fs::perms::owner_all, error);
  if (error) {
    return MakeError(absl::StatusCode::kInternal, Reason::kIoError, "data", scratch.string(),
                     error.message());
  }
  std::unique_ptr<AdapterSources> sources(
      new AdapterSources(std::move(scratch), options.max_weights_bytes, options.room));
  for (const StoreUri& uri : options.allowed) {
    ASSIGN_OR_RETURN(auto store, OpenObjectStore(uri, options.store));
    sources->allowed_.push_back({uri, std::move(store)});
  }
  for (const StoreUri& uri : options.own) {
    ASSIGN_OR_RETURN(auto store, OpenObjectStore(uri, options.store));
    sources->own_.push_back({uri, std::move(store)});
  }
  return sources;
}

absl::Status AdapterSources::Copy(ObjectStore& store, const std::string& key, uint64_t max_bytes,
                                  const AskedFor& asked, const fs::path& file) const {
  const absl::StatusOr<uint64_t> size = store.Size(key);
  if (size.ok() && *size <= max_bytes) {
    RETURN_IF_ERROR(CheckRoom(room_, *size, asked.field, asked.value));
  } else if (!size.ok() && !absl::IsFailedPrecondition(size.status())) {
    return size.status();
  }
  DurableFile out(file);
  const absl::Status got = store.Get(key, max_bytes, [&](std::string_view bytes) -> absl::Status {
    RETURN_IF_ERROR(CheckRoom(room_, bytes.size(), asked.field, asked.value));
    return out.Append(bytes);
  });
  if (got.ok()) return out.Commit();
  const auto detail = GetErrorDetail(got);
  if (!detail || detail->reason != Reason::kSizeLimit) return got;
  // Of the adapter, not of a lack of room.
  return InvalidField(Reason::kSizeLimit, detail->field, detail->value,
                      absl::StrCat("more than the ", max_bytes, " bytes allowed"));
}

absl::Status AdapterSources::FetchFiles(const Root& root, const std::string& key,
                                        const AskedFor& asked, const fs::path& directory) const {
  absl::Status config = Copy(*root.store, key + "/" + kConfigName, kMaxConfigFileBytes, asked,
                             directory / kConfigName);
  if (absl::IsNotFound(config)) return NoAdapter(asked, kConfigName);
  RETURN_IF_ERROR(config);
  absl::Status weights = Copy(*root.store, key + "/" + kWeightsName, max_weights_bytes_, asked,
                              directory / kWeightsName);
  if (!absl::IsNotFound(weights)) return weights;
  if (!root.store->Size(key + "/" + kPickledName).ok()) return NoAdapter(asked, kWeightsName);
  return InvalidField(Reason::kPickle, asked.field, asked.value,
                      "holds pickled weights, which are not read");
}

absl::Status AdapterSources::FetchFrom(const std::vector<Root>& roots, const std::string& uri,
                                       const AskedFor& asked, const Use& use, absl::Status& store) {
  absl::StatusOr<StoreUri> parsed = ParseStoreUri(uri);
  RETURN_IF_ERROR(parsed.status());
  for (const Root& root : roots) {
    const std::optional<std::string> key = KeyUnder(root.uri, *parsed);
    if (!key || key->empty()) continue;
    const fs::path directory = scratch_ / absl::StrCat(++next_);
    std::error_code error;
    fs::create_directory(directory, error);
    store = FetchFiles(root, *key, asked, directory);
    const absl::Status status = store.ok() ? use(directory) : store;
    fs::remove_all(directory, error);
    return status;
  }
  return InvalidField(Reason::kPathInvalid, "path", uri, "is not under an allowed source");
}

absl::Status AdapterSources::FetchOwn(const std::string& uri, const Use& use) {
  const std::string model = uri.substr(uri.rfind('/') + 1);
  absl::Status store;
  const absl::Status status = FetchFrom(own_, uri, {"model", model}, use, store);
  if (store.ok() || absl::IsNotFound(store)) return status;
  LogWarning("the adapter store: ", std::string(store.message()));
  const absl::Status told = WithoutUri(store, "model", model);
  if (!absl::IsDeadlineExceeded(told)) return told;
  // That is the store's time, not the client's.
  return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "model", model,
                   "the store gives no answer; try again later");
}

void AdapterSources::Cancel() {
  for (const std::vector<Root>* roots : {&allowed_, &own_}) {
    for (const Root& root : *roots) root.store->Cancel();
  }
}

}  // namespace rootstock
