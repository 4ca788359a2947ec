#include "common/objects/object_store.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/objects/file_store.h"
#include "common/objects/s3_store.h"

namespace rootstock {
namespace {

constexpr std::string_view kFileScheme = "file://";
constexpr std::string_view kS3Scheme = "s3://";
constexpr size_t kMaxKeyBytes = 1024;  // S3's own bound

absl::Status BadUri(std::string_view uri, const std::string& why) {
  return InvalidField(Reason::kPathInvalid, "uri", std::string(uri), why);
}

bool HasControlCharacters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// "" when every part of the path is a plain name.
std::string WhyNotPlain(std::string_view path) {
  if (HasControlCharacters(path)) return "holds control characters";
  const std::vector<std::string> parts = absl::StrSplit(std::string(path), '/');
  for (const std::string& part : parts) {
    if (part.empty()) return "has an empty part";
    if (part == "." || part == "..") return "'" + part + "' is not allowed";
  }
  return "";
}

// S3's rules for names: 3 to 63 of a-z, 0-9, '.', '-', beginning with a letter or digit.
bool IsBucketName(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return name.size() >= 3 && name.size() <= 63 && plain(name.front()) && plain(name.back()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '-'; });
}

std::string Trimmed(std::string_view path) {
  while (!path.empty() && path.front() == '/') path.remove_prefix(1);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  return std::string(path);
}

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FirstOf(const char* name, const char* other, const char* otherwise) {
  if (std::string value = Env(name); !value.empty()) return value;
  if (std::string value = Env(other); !value.empty()) return value;
  return otherwise;
}

}  // namespace

std::string StoreUri::ToString() const {
  if (kind == Kind::kFile) return absl::StrCat("file://", prefix);
  return absl::StrCat("s3://", bucket, prefix.empty() ? "" : "/", prefix);
}

absl::StatusOr<StoreUri> ParseStoreUri(std::string_view uri) {
  StoreUri out;
  if (uri.starts_with(kFileScheme)) {
    const std::string_view path = uri.substr(kFileScheme.size());
    if (!path.starts_with('/')) return BadUri(uri, "file:// needs an absolute path: file:///DIR");
    out.kind = StoreUri::Kind::kFile;
    const std::string trimmed = Trimmed(path);
    if (const std::string why = WhyNotPlain(trimmed); !trimmed.empty() && !why.empty()) {
      return BadUri(uri, why);
    }
    out.prefix = "/" + trimmed;
    return out;
  }
  if (!uri.starts_with(kS3Scheme)) return BadUri(uri, "neither file:///DIR nor s3://BUCKET/PREFIX");
  const std::string_view rest = uri.substr(kS3Scheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  out.kind = StoreUri::Kind::kS3;
  out.bucket = std::string(rest.substr(0, slash));
  if (!IsBucketName(out.bucket)) return BadUri(uri, "not a bucket's name");
  out.prefix = Trimmed(rest.substr(slash));
  if (const std::string why = WhyNotPlain(out.prefix); !out.prefix.empty() && !why.empty()) {
    return BadUri(uri, why);
  }
  return out;
}

absl::Status CheckObjectKey(const std::string& key) {
  std::string why = key.size() > kMaxKeyBytes ? "over 1024 bytes" : WhyNotPlain(key);
  if (key.empty()) why = "empty";
  if (why.empty()) return absl::OkStatus();
  return InvalidField(Reason::kPathInvalid, "key", key, why);
}

ObjectStoreOptions ObjectStoreOptions::FromEnvironment() {
  ObjectStoreOptions out;
  out.access_key = Env("AWS_ACCESS_KEY_ID");
  out.secret_key = Env("AWS_SECRET_ACCESS_KEY");
  out.session_token = Env("AWS_SESSION_TOKEN");
  out.region = FirstOf("AWS_REGION", "AWS_DEFAULT_REGION", "us-east-1");
  out.endpoint = FirstOf("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "");
  return out;
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const StoreUri& uri,
                                                             const ObjectStoreOptions& options) {
  if (uri.kind == StoreUri::Kind::kS3) return std::make_unique<S3Store>(uri, options);
  return std::make_unique<FileStore>(uri);
}

}  // namespace rootstock
