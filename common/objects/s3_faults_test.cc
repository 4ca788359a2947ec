// What a store may do wrong: RELIABILITY F10.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/objects/http_fixture.h"
#include "common/objects/object_store.h"
#include "common/objects/retry.h"

namespace rootstock {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Got {
  absl::Status status;
  std::string bytes;
};

ObjectStoreOptions OptionsFor(const HttpFixture& server) {
  ObjectStoreOptions options;
  options.endpoint = server.endpoint();
  options.access_key = "AKEY";
  options.secret_key = "SECRET-KEY";
  options.stall_timeout = absl::Seconds(1);
  options.first_retry = absl::Milliseconds(1);
  return options;
}

std::unique_ptr<ObjectStore> Open(const ObjectStoreOptions& options) {
  return *OpenObjectStore(*ParseStoreUri("s3://bucket/pre"), options);
}

std::unique_ptr<ObjectStore> StoreAt(const HttpFixture& server) { return Open(OptionsFor(server)); }

Got Get(ObjectStore& store, uint64_t max_bytes = 1 << 20) {
  Got got;
  got.status = store.Get("a b", max_bytes, [&](std::string_view bytes) {
    got.bytes.append(bytes);
    return absl::OkStatus();
  });
  return got;
}

std::string Base64Sha256(const std::string& text) {
  const Digest digest = Sha256Of(text);
  return absl::Base64Escape(std::string(digest.bytes.begin(), digest.bytes.end()));
}

HttpFixture::Step Error(int status, const std::string& body = "") {
  return HttpAnswer(status, body.size(), body);
}

TEST(S3FaultsTest, SignsAPathStyleRequest) {
  HttpFixture server({HttpAnswer(200, 5, "12345")});
  const Got got = Get(*StoreAt(server));
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.bytes, "12345");
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_THAT(server.requests()[0], HasSubstr("GET /bucket/pre/a%20b HTTP/1.1"));
  EXPECT_THAT(server.requests()[0], HasSubstr("AWS4-HMAC-SHA256 Credential=AKEY/"));
  EXPECT_THAT(server.requests()[0], Not(HasSubstr("SECRET-KEY")));
}

TEST(S3FaultsTest, TriesAgainAfter503sAndClosedConnections) {
  HttpFixture server({Error(503), {.refuse = true}, Error(500), HttpAnswer(200, 2, "ok")});
  const Got got = Get(*StoreAt(server));
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.bytes, "ok");
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(S3FaultsTest, GivesUpAfterThreeRetries) {
  HttpFixture server({Error(503, "<Error><Code>SlowDown</Code></Error>")});
  const Got got = Get(*StoreAt(server));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(got.status.message()),
              HasSubstr("uri=s3://bucket/pre/a b: the store answers HTTP 503 SlowDown"));
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(S3FaultsTest, WhatCannotChangeIsNotTriedAgain) {
  const std::pair<int, absl::StatusCode> kCases[] = {
      {404, absl::StatusCode::kNotFound},
      {403, absl::StatusCode::kPermissionDenied},
      {301, absl::StatusCode::kFailedPrecondition},
      {400, absl::StatusCode::kFailedPrecondition},
  };
  for (const auto& [http, code] : kCases) {
    HttpFixture server({Error(http)});
    EXPECT_EQ(Get(*StoreAt(server)).status.code(), code) << http;
    EXPECT_EQ(server.requests().size(), 1u) << http;
  }
}

TEST(S3FaultsTest, AFullStoreSaysSo) {
  const std::string document = "<Error><Code>XMinioStorageFull</Code></Error>";
  const std::string file = ::testing::TempDir() + "/s3_faults_test";
  std::ofstream(file) << "12345";
  for (const auto& [http, body] : {std::pair(507, document), {507, ""}, {500, document}}) {
    HttpFixture server({Error(http, body)});
    const absl::Status full = StoreAt(server)->Put("a b", file);
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_EQ(GetErrorDetail(full)->reason, Reason::kNoSpace);
    EXPECT_EQ(server.requests().size(), 1u);
  }
}

TEST(S3FaultsTest, AnAbsentBucketIsNoAbsentObject) {
  HttpFixture server({Error(404, "<Error><Code>NoSuchBucket</Code></Error>")});
  EXPECT_EQ(Get(*StoreAt(server)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(StoreAt(server)->Remove("a").code(), absl::StatusCode::kFailedPrecondition);
  HttpFixture absent({Error(404, "<Error><Code>NoSuchKey</Code></Error>")});
  EXPECT_EQ(Get(*StoreAt(absent)).status.code(), absl::StatusCode::kNotFound);
}

TEST(S3FaultsTest, GoesOnWhereABodyEnded) {
  HttpFixture server(
      {HttpAnswer(200, 10, "0123"), HttpAnswer(206, 6, "456"), HttpAnswer(206, 3, "789")});
  const Got got = Get(*StoreAt(server));
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.bytes, "0123456789");
  ASSERT_EQ(server.requests().size(), 3u);
  EXPECT_THAT(server.requests()[1], HasSubstr("Range: bytes=4-"));
  EXPECT_THAT(server.requests()[1], HasSubstr("If-Match: \"e\""));
  EXPECT_THAT(server.requests()[2], HasSubstr("Range: bytes=7-"));
}

TEST(S3FaultsTest, NeverJoinsTwoObjects) {
  // Another version of it meanwhile; and a server that knows no ranges.
  for (const HttpFixture::Step& second :
       {HttpAnswer(206, 6, "abcdef", "\"f\""), HttpAnswer(200, 10, "0123456789"), Error(412)}) {
    HttpFixture server({HttpAnswer(200, 10, "0123"), second});
    const Got got = Get(*StoreAt(server));
    EXPECT_EQ(got.status.code(), absl::StatusCode::kDataLoss) << got.status;
    EXPECT_EQ(got.bytes, "0123");
    EXPECT_EQ(server.requests().size(), 2u);
  }
}

TEST(S3FaultsTest, AStallEndsByItsTimeout) {
  HttpFixture::Step stalled = HttpAnswer(200, 10, "0123");
  stalled.hang = true;
  HttpFixture server({stalled, HttpAnswer(206, 6, "456789")});
  const Got got = Get(*StoreAt(server));
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.bytes, "0123456789");
}

// One that sends a byte now and then holds its thread no longer than one that sends none.
TEST(S3FaultsTest, ADripEnds) {
  HttpFixture::Step drip = HttpAnswer(200, 200, std::string(200, 'x'));
  drip.drip_ms = 100;
  HttpFixture server({drip});
  ObjectStoreOptions options = OptionsFor(server);
  options.max_retries = 0;
  options.least_bytes_within = absl::Seconds(1);
  const Got slow = Get(*Open(options));
  EXPECT_EQ(slow.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(slow.status.message()),
              testing::ContainsRegex("^uri=s3://bucket/pre/a b: only [0-9]+ bytes came in 1s, "
                                     "not 262144"));
  options.least_bytes = 1;
  options.total_timeout = absl::Seconds(2);
  options.max_retries = 3;
  const Got long_one = Get(*Open(options));
  EXPECT_EQ(long_one.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(long_one.status.message()), HasSubstr("it was not over after 2s"));
  EXPECT_EQ(server.requests().size(), 2u);  // nothing is tried again then
}

TEST(S3FaultsTest, ASlowDiskIsNoDrip) {
  HttpFixture::Step drip = HttpAnswer(200, 4, "0123");
  drip.drip_ms = 100;
  HttpFixture server({drip});
  ObjectStoreOptions options = OptionsFor(server);
  options.least_bytes_within = absl::Seconds(1);
  std::string bytes;
  const absl::Status status = Open(options)->Get("a", 10, [&](std::string_view more) {
    if (bytes.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    bytes += more;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(bytes, "0123");
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(S3FaultsTest, RefusesWhatIsTooLargeBeforeItsFirstByte) {
  HttpFixture server({HttpAnswer(200, 11, "01234567890")});
  const Got got = Get(*StoreAt(server), 10);
  EXPECT_EQ(got.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(got.status)->reason, Reason::kSizeLimit);
  EXPECT_EQ(got.bytes, "");
  // A server that does not tell the length is cut off at the bound.
  HttpFixture silent({HttpFixture::Step{"HTTP/1.1 200 x\r\n", "01234567890"}});
  const Got cut = Get(*StoreAt(silent), 10);
  EXPECT_EQ(cut.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(cut.bytes.size(), 10u);
}

// SHA-256, where the object was put with one: then a bit that has flipped in the store is found.
TEST(S3FaultsTest, AnObjectIsItsChecksums) {
  const std::string right = absl::StrCat("x-amz-checksum-sha256: ", Base64Sha256("0123456789"));
  const auto answer = [&](int http, size_t length, const std::string& body,
                          const std::string& header) {
    HttpFixture::Step step = HttpAnswer(http, length, body);
    step.head += header + "\r\n";
    return step;
  };
  HttpFixture good({answer(200, 10, "0123456789", right)});
  EXPECT_TRUE(Get(*StoreAt(good)).status.ok());
  EXPECT_THAT(good.requests()[0], HasSubstr("x-amz-checksum-mode: ENABLED"));
  HttpFixture flipped({answer(200, 10, "0123456788", right)});
  const absl::Status status = Get(*StoreAt(flipped)).status;
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kDigestMismatch);
  EXPECT_EQ(flipped.requests().size(), 1u);
  // Of the whole, in however many pieces it comes.
  HttpFixture cut({answer(200, 10, "0123", right), HttpAnswer(206, 6, "456789")});
  EXPECT_TRUE(Get(*StoreAt(cut)).status.ok());
  HttpFixture cut_flipped({answer(200, 10, "0123", right), HttpAnswer(206, 6, "456788")});
  EXPECT_TRUE(absl::IsDataLoss(Get(*StoreAt(cut_flipped)).status));
  // What is put in parts has one of its parts' checksums.
  HttpFixture parts({answer(200, 10, "0123456789", right + "-2")});
  EXPECT_TRUE(Get(*StoreAt(parts)).status.ok());
}

TEST(S3FaultsTest, ASinksErrorIsTheGets) {
  HttpFixture server({HttpAnswer(200, 2, "ok")});
  const absl::Status status = StoreAt(server)->Get(
      "a", 10, [](std::string_view) { return absl::UnavailableError("disk"); });
  EXPECT_EQ(status, absl::UnavailableError("disk"));
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(S3FaultsTest, CancelEndsAStalledGet) {
  HttpFixture::Step stalled = HttpAnswer(200, 10, "0123");
  stalled.hang = true;
  auto server = std::make_unique<HttpFixture>(std::vector{stalled});
  const auto store = StoreAt(*server);
  server->on_request = [&] { store->Cancel(); };
  EXPECT_TRUE(absl::IsCancelled(Get(*store).status));
  server.reset();  // its thread may still be in Cancel
  EXPECT_TRUE(absl::IsCancelled(store->Size("a").status()));
}

TEST(S3FaultsTest, NobodyThere) {
  std::string endpoint;
  {
    const HttpFixture gone({Error(200)});
    endpoint = gone.endpoint();
  }
  ObjectStoreOptions options;
  options.endpoint = endpoint;
  options.first_retry = absl::Milliseconds(1);
  const auto store = *OpenObjectStore(*ParseStoreUri("s3://bucket"), options);
  const auto size = store->Size("a");
  EXPECT_EQ(size.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(size.status().message()), HasSubstr("uri=s3://bucket/a: "));
}

TEST(RetryPolicyTest, DoublesItsBoundAndEnds) {
  RetryPolicy policy(3, absl::Milliseconds(100), 42);
  for (const int bound_ms : {100, 200, 400}) {
    const absl::Duration wait = policy.NextWait();
    EXPECT_GE(wait, absl::ZeroDuration());
    EXPECT_LE(wait, absl::Milliseconds(bound_ms));
  }
  EXPECT_LT(policy.NextWait(), absl::ZeroDuration());
}

}  // namespace
}  // namespace rootstock
