// Test peers of the disk tier: a source in memory, and a cache's directory.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/link/blobs/blob_cache.h"

namespace rootstock {

// Gives what is asked for, unless told otherwise.
class MemorySource : public BlobSource {
 public:
  FetchSource kind() const override { return FetchSource::kObject; }
  absl::Status Fetch(const Digest& digest, const BlobSink& sink) override {
    ++fetches;
    const auto it = contents.find(digest);
    if (it == contents.end()) return absl::NotFoundError("no such content");
    RETURN_IF_ERROR(sink.begin(said_bytes != 0 ? said_bytes : it->second.size()));
    if (during) during();
    return sink.write(it->second);
  }
  void Cancel() override {}
  Digest Add(const std::string& content) {
    contents[Sha256Of(content)] = content;
    return Sha256Of(content);
  }
  std::map<Digest, std::string> contents;
  uint64_t said_bytes = 0;
  std::function<void()> during;
  std::atomic<int> fetches = 0;
};

// All of the content that the cache has.
inline absl::StatusOr<std::string> ReadAll(BlobCache& cache, const Digest& digest) {
  std::string text;
  const BlobSink sink = {.begin = [](uint64_t) { return absl::OkStatus(); },
                         .write =
                             [&](std::string_view piece) {
                               text += piece;
                               return absl::OkStatus();
                             }};
  RETURN_IF_ERROR(cache.Read(digest, sink));
  return text;
}

// A cache's directory, and processes beside this one.
class BlobCacheTest : public testing::Test {
 protected:
  BlobCacheTest()
      : dir_(std::filesystem::temp_directory_path() /
             absl::StrCat("blob_cache.", getpid(), ".", std::rand())) {}
  ~BlobCacheTest() override { std::filesystem::remove_all(dir_); }
  // Of 1000 bytes.
  Digest Add(char c) { return source_.Add(std::string(1000, c)); }
  bool Ensure(BlobCache& cache, const Digest& digest) { return cache.Ensure(digest, source_).ok(); }
  // As if its last use were `seconds` ago.
  void Age(const BlobCache& cache, const Digest& digest, int seconds) {
    std::filesystem::last_write_time(
        cache.PathOf(digest),
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  size_t FileCount() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      count += entry.path().filename() == ".lock" ? 0 : 1;
    }
    return count;
  }
  // What `call` returns in another process of the node.
  template <typename Call>
  int InAnotherProcess(Call call) {
    const pid_t pid = fork();
    if (pid == 0) _exit(call());
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
  }

  const std::filesystem::path dir_;
  MemorySource source_;
};

}  // namespace rootstock
