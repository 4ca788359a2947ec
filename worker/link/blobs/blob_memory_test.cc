// What the disk tier holds in memory, for how long, and between threads.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/link/blobs/blob_rig.h"

namespace rootstock {
namespace {

class BlobMemoryTest : public BlobCacheTest {};

// One piece over and over.
class PieceSource : public BlobSource {
 public:
  PieceSource(std::string piece, uint64_t count) : piece_(std::move(piece)), count_(count) {}
  FetchSource kind() const override { return FetchSource::kObject; }
  absl::Status Fetch(const Digest&, const BlobSink& sink) override {
    RETURN_IF_ERROR(sink.begin(piece_.size() * count_));
    for (uint64_t i = 0; i < count_; ++i) RETURN_IF_ERROR(sink.write(piece_));
    return absl::OkStatus();
  }
  void Cancel() override {}

 private:
  const std::string piece_;
  const uint64_t count_;
};

// Of this process, as RLIMIT_DATA counts it.
uint64_t DataBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "VmData:" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// What is being read is read to its end when its file goes, and is nobody else's until then.
TEST_F(BlobMemoryTest, AReadGoesOnWhenItsFileGoes) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a'), b = Add('b'), empty = source_.Add("");
  ASSERT_TRUE(Ensure(cache, a));
  std::string text;
  const BlobSink sink = {.begin =
                             [&](uint64_t bytes) {
                               EXPECT_EQ(bytes, 1000u);
                               EXPECT_FALSE(Ensure(cache, b));
                               EXPECT_EQ(*cache.Remove(a), 1000u);
                               return absl::OkStatus();
                             },
                         .write =
                             [&](std::string_view piece) {
                               text += piece;
                               return absl::OkStatus();
                             }};
  EXPECT_TRUE(cache.Read(a, sink).ok());
  EXPECT_EQ(text, std::string(1000, 'a'));
  EXPECT_TRUE(Ensure(cache, b));
  ASSERT_TRUE(Ensure(cache, empty));
  EXPECT_EQ(*ReadAll(cache, empty), "");
}

// FAULTS F8, of a file with three pieces: a writer that cuts or changes it while it is read kills
// nobody, and no byte is used that was not hashed.
TEST_F(BlobMemoryTest, F8AFileThatIsCutOrWrittenWhileItIsReadIsSpoilt) {
  const std::string content = std::string(1 << 20, 'a') + std::string(1 << 20, 'b') + "end";
  const Digest digest = source_.Add(content);
  BlobCache cache(dir_, 1 << 30);
  const auto read_and = [&](const std::function<void()>& disturb) {
    EXPECT_TRUE(Ensure(cache, digest));
    std::string text;
    const BlobSink sink = {.begin = [](uint64_t) { return absl::OkStatus(); },
                           .write =
                               [&](std::string_view piece) {
                                 if (text.empty()) disturb();
                                 text += piece;
                                 return absl::OkStatus();
                               }};
    const absl::Status status = cache.Read(digest, sink);
    return std::pair(status, text);
  };
  const auto write_at = [&](std::streamoff at) {
    std::fstream file(cache.PathOf(digest), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file << "x";
  };
  for (const std::function<void()>& spoil :
       {std::function<void()>([&] { std::filesystem::resize_file(cache.PathOf(digest), 5); }),
        std::function<void()>([&] { write_at(2 << 20); })}) {
    const auto [status, text] = read_and(spoil);
    EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kDigestMismatch) << status;
    EXPECT_FALSE(cache.IsThere(digest));
  }
  // What was read already is what counts.
  const auto [status, text] = read_and([&] { write_at(0); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, content);
}

// The sink's own error, unless what it got was spoilt.
TEST_F(BlobMemoryTest, ASinksErrorIsToldAndTheFileStays) {
  BlobCache cache(dir_, 1500);
  const Digest a = Add('a');
  ASSERT_TRUE(Ensure(cache, a));
  const BlobSink sink = {
      .begin = [](uint64_t) { return absl::OkStatus(); },
      .write = [](std::string_view) { return absl::CancelledError("no use for it"); }};
  EXPECT_TRUE(absl::IsCancelled(cache.Read(a, sink)));
  EXPECT_TRUE(ReadAll(cache, a).ok());
  std::ofstream(cache.PathOf(a)) << "spoilt";
  EXPECT_EQ(GetErrorDetail(cache.Read(a, sink))->reason, Reason::kDigestMismatch);
  EXPECT_FALSE(cache.IsThere(a));
}

// FAULTS I4: neither fetching nor reading holds a content in memory.
TEST_F(BlobMemoryTest, I4AContentIsNeverWholeInMemory) {
  constexpr uint64_t kPieces = 192, kSpare = 64 << 20;
  const std::string piece(1 << 20, 'p');
  Sha256 hash;
  for (uint64_t i = 0; i < kPieces; ++i) hash.Update(piece);
  const Digest digest = hash.Finish();
  PieceSource source(piece, kPieces);
  EXPECT_EQ(InAnotherProcess([&] {
              const rlimit limit{DataBytes() + kSpare, DataBytes() + kSpare};
              if (setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
              if (!BlobCache(dir_, 1 << 30).Ensure(digest, source).ok()) return 2;
              BlobCache cache(dir_, 1 << 30);  // which has not read it yet
              if (cache.Ensure(digest, source)->source != FetchSource::kDisk) return 3;
              uint64_t read = 0;
              const BlobSink sink = {.begin = [](uint64_t) { return absl::OkStatus(); },
                                     .write =
                                         [&](std::string_view bytes) {
                                           read += bytes.size();
                                           return absl::OkStatus();
                                         }};
              return cache.Read(digest, sink).ok() && read == kPieces << 20 ? 0 : 4;
            }),
            0);
}

// Each thread for itself: what it asked for is what it reads, however the others evict and spoil.
TEST_F(BlobMemoryTest, ManyThreadsAtOnce) {
  BlobCache cache(dir_, 3500);
  std::vector<Digest> digests;
  for (char c = 'a'; c < 'h'; ++c) digests.push_back(Add(c));
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 60; ++i) {
        const size_t which = (i * (t + 1)) % digests.size();
        const auto lease = cache.Ensure(digests[which], source_);
        if (t == 0 && i % 3 == 0) cache.Pin(digests[which], i % 2 == 0);
        if (t == 1 && i % 5 == 0) cache.Remove(digests[which]).IgnoreError();
        const auto held = ReadAll(cache, digests[which]);
        if (held.ok()) {
          EXPECT_EQ(*held, std::string(1000, static_cast<char>('a' + which)));
          ++good;
        }
        cache.TakeChanges();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(good, 0);
  cache.UnpinAll();
  for (const Digest& digest : digests) EXPECT_TRUE(Ensure(cache, digest));
}

}  // namespace
}  // namespace rootstock
