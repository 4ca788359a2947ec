#include "common/objects/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr size_t kMaxErrorBody = 4096;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct EndHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// What the callbacks of one exchange share.
struct Exchange {
  const HttpClient::Handlers* handlers;
  const std::atomic<bool>* cancelled;
  const ObjectStoreOptions* options;
  CURL* handle;
  HttpClient::Answer answer;
  absl::Status handler_error;
  bool head_given = false;
  using Time = std::chrono::steady_clock::time_point;
  const Time began = std::chrono::steady_clock::now();
  curl_off_t moved = 0;  // bytes of both directions, at `moved_at`
  Time moved_at = began;
  curl_off_t counted = 0;  // of `moved`, before `counted_at`
  Time counted_at = began;
  std::string stalled;  // why it is ended

  // Why this is no transfer that goes on; empty: it does. A disk that takes long is not the
  // store's.
  std::string WhyStalled(Time now) {
    const absl::Duration still = absl::FromChrono(now - moved_at);
    const absl::Duration total = absl::FromChrono(now - began);
    const absl::Duration window = absl::FromChrono(now - counted_at);
    if (still >= options->stall_timeout) {
      return absl::StrCat("no byte came for ", absl::FormatDuration(options->stall_timeout));
    }
    if (total >= options->total_timeout) {
      return absl::StrCat("it was not over after ", absl::FormatDuration(options->total_timeout));
    }
    if (window < options->least_bytes_within) return "";
    const auto came = static_cast<uint64_t>(moved - counted);
    if (came < options->least_bytes) {
      return absl::StrCat("only ", came, " bytes came in ",
                          absl::FormatDuration(options->least_bytes_within), ", not ",
                          options->least_bytes);
    }
    counted = moved;
    counted_at = now;
    return "";
  }

  bool is_success() const { return answer.head.status / 100 == 2; }

  absl::Status GiveHead() {
    if (head_given || !is_success()) return absl::OkStatus();
    head_given = true;
    curl_off_t length = -1;
    curl_easy_getinfo(handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (length >= 0) answer.head.content_length = static_cast<uint64_t>(length);
    return handlers->head ? handlers->head(answer.head) : absl::OkStatus();
  }
};

// Nothing for another: that of an object in parts is of its parts' digests, "...-3".
std::optional<Digest> DigestFromBase64(const std::string& text) {
  std::string bytes;
  Digest digest;
  if (!absl::Base64Unescape(text, &bytes) || bytes.size() != digest.bytes.size()) {
    return std::nullopt;
  }
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) {
    long status = 0;
    curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
    exchange.answer.head = {};
    exchange.answer.head.status = static_cast<int>(status);
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size * count;
  const std::string name = absl::AsciiStrToLower(std::string(line.substr(0, colon)));
  std::string value(line.substr(colon + 1));
  absl::StripAsciiWhitespace(&value);
  if (name == "etag") exchange.answer.head.etag = value;
  if (name == "x-amz-checksum-sha256") exchange.answer.head.sha256 = DigestFromBase64(value);
  return size * count;
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view bytes(data, size * count);
  if (!exchange.is_success()) {
    std::string& kept = exchange.answer.error_body;
    kept.append(bytes.substr(0, kMaxErrorBody - std::min(kMaxErrorBody, kept.size())));
    return bytes.size();
  }
  exchange.handler_error = exchange.GiveHead();
  if (exchange.handler_error.ok() && exchange.handlers->body) {
    const auto before = std::chrono::steady_clock::now();
    exchange.handler_error = exchange.handlers->body(bytes);
    exchange.counted_at += std::chrono::steady_clock::now() - before;
  }
  return exchange.handler_error.ok() ? bytes.size() : 0;  // less than all: libcurl gives up
}

// libcurl calls it about once a second when nothing moves. Its own low-speed limit averages over
// five seconds.
int OnProgress(void* user, curl_off_t, curl_off_t down, curl_off_t, curl_off_t up) {
  auto& exchange = *static_cast<Exchange*>(user);
  const auto now = std::chrono::steady_clock::now();
  if (down + up != exchange.moved) {
    exchange.moved = down + up;
    exchange.moved_at = now;
  }
  exchange.stalled = exchange.WhyStalled(now);
  return exchange.cancelled->load() || !exchange.stalled.empty() ? 1 : 0;
}

void Sign(CURL* handle, const ObjectStoreOptions& options) {
  if (options.access_key.empty()) return;
  const std::string scope = absl::StrCat("aws:amz:", options.region, ":s3");
  const std::string keys = absl::StrCat(options.access_key, ":", options.secret_key);
  curl_easy_setopt(handle, CURLOPT_AWS_SIGV4, scope.c_str());  // libcurl copies both
  curl_easy_setopt(handle, CURLOPT_USERPWD, keys.c_str());
}

absl::Status SetBody(CURL* handle, const std::filesystem::path& path, std::FILE* file) {
  std::error_code error;
  const auto bytes = static_cast<curl_off_t>(std::filesystem::file_size(path, error));
  if (file == nullptr || error) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "file", path.string(),
                     "cannot be read");
  }
  curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
  curl_easy_setopt(handle, CURLOPT_READDATA, file);
  curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, bytes);
  return absl::OkStatus();
}

absl::Status ErrorOf(CURLcode code, const std::string& what, const char* text) {
  const std::string why = text[0] != '\0' ? text : curl_easy_strerror(code);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kIoError, "uri", what, why);
    case CURLE_PARTIAL_FILE:
      return MakeError(absl::StatusCode::kUnavailable, Reason::kTruncated, "uri", what, why);
    default:
      return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "uri", what, why);
  }
}

}  // namespace

HttpClient::HttpClient(const ObjectStoreOptions& options) : options_(options) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

absl::StatusOr<HttpClient::Answer> HttpClient::Do(const HttpRequest& request,
                                                  const std::string& what,
                                                  const Handlers& handlers) {
  if (cancelled_) return absl::CancelledError(absl::StrCat(what, ": cancelled"));
  const std::unique_ptr<CURL, EndHandle> handle(curl_easy_init());
  Exchange exchange{&handlers, &cancelled_, &options_, handle.get(), {}, {}};
  std::unique_ptr<curl_slist, FreeList> headers;
  for (const std::string& header : request.headers) {
    headers.reset(curl_slist_append(headers.release(), header.c_str()));
  }
  char text[CURL_ERROR_SIZE] = "";
  CURL* const h = handle.get();
  curl_easy_setopt(h, CURLOPT_ERRORBUFFER, text);
  curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(h, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(h, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(h, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(h, CURLOPT_XFERINFODATA, &exchange);
  curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
  Sign(h, options_);
  std::unique_ptr<std::FILE, CloseFile> body;
  if (request.method == "HEAD") curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
  if (request.method == "DELETE") curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, "DELETE");
  if (request.method == "PUT") {
    body.reset(std::fopen(request.body.c_str(), "rbe"));
    RETURN_IF_ERROR(SetBody(h, request.body, body.get()));
  }
  const CURLcode code = curl_easy_perform(h);
  if (cancelled_) return absl::CancelledError(absl::StrCat(what, ": cancelled"));
  RETURN_IF_ERROR(exchange.handler_error);
  if (!exchange.stalled.empty()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kIoError, "uri", what,
                     exchange.stalled);
  }
  if (code != CURLE_OK) return ErrorOf(code, what, text);
  RETURN_IF_ERROR(exchange.GiveHead());  // of an empty body
  return exchange.answer;
}

}  // namespace rootstock
