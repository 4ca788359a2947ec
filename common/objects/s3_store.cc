#include "common/objects/s3_store.h"

#include <array>
#include <fstream>
#include <random>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/objects/retry.h"

namespace rootstock {
namespace {

// RFC 3986's unreserved characters and '/', as SigV4's canonical path wants them.
std::string EscapedKey(std::string_view key) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : key) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || c == '/';
    if (plain) {
      out.push_back(static_cast<char>(c));
    } else {
      out.append({'%', kHex[c >> 4], kHex[c & 15]});
    }
  }
  return out;
}

// <Code>…</Code> of S3's error document.
std::string ErrorCode(const std::string& body) {
  constexpr std::string_view kOpen = "<Code>";
  const size_t begin = body.find(kOpen);
  const size_t end = body.find("</Code>");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return body.substr(begin + kOpen.size(), end - begin - kOpen.size());
}

bool IsFull(int http, const std::string& error_code) {
  return http == 507 || error_code == "XMinioStorageFull";
}

// A bucket that is not there says nothing of any object. No use in trying a full store again soon.
absl::StatusCode CodeOfHttp(int http, const std::string& error_code) {
  if (IsFull(http, error_code)) return absl::StatusCode::kResourceExhausted;
  if (error_code == "NoSuchBucket") return absl::StatusCode::kFailedPrecondition;
  if (http == 404) return absl::StatusCode::kNotFound;
  if (http == 401 || http == 403) return absl::StatusCode::kPermissionDenied;
  if (http == 412) return absl::StatusCode::kDataLoss;
  if (http == 408 || http == 429 || http >= 500) return absl::StatusCode::kUnavailable;
  return absl::StatusCode::kFailedPrecondition;
}

absl::StatusOr<Digest> DigestOf(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(buffer.data()),
                          static_cast<size_t>(in.gcount())));
  }
  if (!in.eof()) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "file", file.string(),
                     "cannot be read");
  }
  return hash.Finish();
}

absl::Status TooLarge(const std::string& uri, uint64_t bytes, uint64_t max_bytes) {
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kSizeLimit, "uri", uri,
                   absl::StrCat(bytes, " bytes, more than the ", max_bytes, " allowed"));
}

}  // namespace

S3Store::S3Store(StoreUri uri, ObjectStoreOptions options)
    : uri_(std::move(uri)), options_(std::move(options)), http_(options_) {}

std::string S3Store::UriOf(const std::string& key) const {
  return absl::StrCat(uri_.ToString(), "/", key);
}

HttpRequest S3Store::RequestFor(const std::string& method, const std::string& key) const {
  std::string endpoint = options_.endpoint.empty()
                             ? absl::StrCat("https://s3.", options_.region, ".amazonaws.com")
                             : options_.endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  HttpRequest request;
  request.method = method;
  request.url =
      absl::StrCat(endpoint, "/", uri_.bucket, "/",
                   uri_.prefix.empty() ? "" : EscapedKey(uri_.prefix) + "/", EscapedKey(key));
  if (!options_.session_token.empty()) {
    request.headers.push_back(absl::StrCat("x-amz-security-token: ", options_.session_token));
  }
  return request;
}

absl::Status S3Store::StatusOf(const HttpClient::Answer& answer, const std::string& key) const {
  const int http = answer.head.status;
  if (http / 100 == 2) return absl::OkStatus();
  std::string text = absl::StrCat("the store answers HTTP ", http);
  const std::string code = ErrorCode(answer.error_body);
  if (!code.empty()) absl::StrAppend(&text, " ", code);
  if (http == 403) absl::StrAppend(&text, "; without s3:ListBucket for absent keys too");
  if (http == 412) absl::StrAppend(&text, ": the object changed while it was read");
  if (http / 100 == 3) absl::StrAppend(&text, ": the bucket is elsewhere; set AWS_REGION");
  return MakeError(CodeOfHttp(http, code), IsFull(http, code) ? Reason::kNoSpace : Reason::kIoError,
                   "uri", UriOf(key), text);
}

absl::StatusOr<uint64_t> S3Store::Size(const std::string& key) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  uint64_t bytes = 0;
  RETURN_IF_ERROR(Retry([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const HttpClient::Answer answer,
                     http_.Do(RequestFor("HEAD", key), UriOf(key), {}));
    RETURN_IF_ERROR(StatusOf(answer, key));
    if (!answer.head.content_length) {
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kIoError, "uri", UriOf(key),
                       "the store does not tell the size");
    }
    bytes = *answer.head.content_length;
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status S3Store::GetOnce(const std::string& key, uint64_t max_bytes, const Sink& sink,
                              Progress& progress) {
  HttpRequest request = RequestFor("GET", key);
  const uint64_t from = progress.done;
  if (from == 0) request.headers.push_back("x-amz-checksum-mode: ENABLED");
  if (from > 0) {
    request.headers.push_back(absl::StrCat("Range: bytes=", from, "-"));
    if (!progress.etag.empty()) request.headers.push_back("If-Match: " + progress.etag);
  }
  HttpClient::Handlers handlers;
  handlers.head = [&](const HttpHead& head) -> absl::Status {
    if (from > 0 && (head.status != 206 || progress.etag.empty() || head.etag != progress.etag)) {
      return MakeError(absl::StatusCode::kDataLoss, Reason::kTruncated, "uri", UriOf(key),
                       absl::StrCat("ended after ", from, " bytes and cannot be read on"));
    }
    progress.etag = head.etag;
    if (from == 0) progress.said = head.sha256;
    if (head.content_length && from + *head.content_length > max_bytes) {
      return TooLarge(UriOf(key), from + *head.content_length, max_bytes);
    }
    return absl::OkStatus();
  };
  handlers.body = [&](std::string_view bytes) -> absl::Status {
    if (progress.done + bytes.size() > max_bytes) {
      return TooLarge(UriOf(key), progress.done + bytes.size(), max_bytes);
    }
    RETURN_IF_ERROR(sink(bytes));
    progress.done += bytes.size();
    progress.hash.Update(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const HttpClient::Answer answer, http_.Do(request, UriOf(key), handlers));
  return StatusOf(answer, key);
}

absl::Status S3Store::Get(const std::string& key, uint64_t max_bytes, const Sink& sink) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  Progress progress;
  // The sink's own error is never tried again, whatever its code.
  absl::Status refused;
  const Sink guarded = [&](std::string_view bytes) {
    refused = sink(bytes);
    return refused.ok() ? refused : absl::AbortedError("");
  };
  const absl::Status status = Retry([&] { return GetOnce(key, max_bytes, guarded, progress); });
  if (!refused.ok()) return refused;
  if (!status.ok() || !progress.said) return status;
  if (const Digest came = progress.hash.Finish(); came != *progress.said) {
    return MakeError(
        absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "uri", UriOf(key),
        absl::StrCat("came as ", came.Short(), ", its checksum says ", progress.said->Short()));
  }
  return status;
}

absl::Status S3Store::Put(const std::string& key, const std::filesystem::path& file) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  ASSIGN_OR_RETURN(const Digest digest, DigestOf(file));
  return Retry([&]() -> absl::Status {
    HttpRequest request = RequestFor("PUT", key);
    request.body = file;
    request.headers.push_back("x-amz-content-sha256: " + digest.Hex());
    ASSIGN_OR_RETURN(const HttpClient::Answer answer, http_.Do(request, UriOf(key), {}));
    return StatusOf(answer, key);
  });
}

absl::Status S3Store::Remove(const std::string& key) {
  RETURN_IF_ERROR(CheckObjectKey(key));
  const absl::Status status = Retry([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const HttpClient::Answer answer,
                     http_.Do(RequestFor("DELETE", key), UriOf(key), {}));
    return StatusOf(answer, key);
  });
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status S3Store::Retry(const std::function<absl::Status()>& attempt) {
  RetryPolicy policy(options_.max_retries, options_.first_retry, std::random_device()());
  const absl::Time last = absl::Now() + options_.total_timeout;
  for (;;) {
    const absl::Status status = attempt();
    if (status.ok() || !IsTransient(status) || absl::Now() >= last) return status;
    const absl::Duration wait = policy.NextWait();
    if (wait < absl::ZeroDuration()) return status;
    if (!Sleep(wait)) return absl::CancelledError(absl::StrCat(uri_.ToString(), ": cancelled"));
  }
}

bool S3Store::Sleep(absl::Duration wait) {
  std::unique_lock lock(mutex_);
  return !cancelled_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                              [&] { return http_.cancelled(); });
}

void S3Store::Cancel() {
  const std::lock_guard lock(mutex_);
  http_.Cancel();
  cancelled_.notify_all();
}

}  // namespace rootstock
