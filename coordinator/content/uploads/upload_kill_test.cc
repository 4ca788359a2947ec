// kill -9 in the midst of an upload: no byte that was acknowledged is lost, none is made up.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "common/base/status.h"
#include "coordinator/content/kill_fixture.h"
#include "coordinator/content/uploads/upload_store.h"

namespace rootstock::upload_kill {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr size_t kPiece = 100, kPieces = 8;  // of the weights
constexpr size_t kTold = kPieces + 2;        // of an upload: its config, pieces and Finish

std::string TextOf(size_t upload) {
  std::string text;
  for (size_t i = 0; i < kPiece * kPieces; ++i) text += static_cast<char>('a' + (i + upload) % 26);
  return text;
}

absl::StatusOr<UploadState> StartOf(UploadStore& store, size_t upload) {
  const std::string text = TextOf(upload);
  return store.Start("t", {{kConfig, 2, Sha256Of("{}")}, {kWeights, text.size(), Sha256Of(text)}});
}

// From what is there on to the end; told() after each call that succeeded.
absl::Status SendAll(UploadStore& store, size_t upload, const std::function<void()>& told) {
  ASSIGN_OR_RETURN(const UploadState state, StartOf(store, upload));
  const std::string text = TextOf(upload);
  {
    ASSIGN_OR_RETURN(const auto writer, store.Write("t", state.id));
    // A kill may have come between its bytes and its verification.
    if (const uint64_t at = state.files[0].received; at < 2) {
      RETURN_IF_ERROR(writer->Append(kConfig, at, std::string("{}").substr(at)));
      told();
    }
    for (size_t at = state.files[1].received; at < text.size(); at += kPiece) {
      RETURN_IF_ERROR(writer->Append(kWeights, at, text.substr(at, kPiece)));
      told();
    }
  }
  RETURN_IF_ERROR(store.Finish("t", state.id, [&](const fs::path& path) {
    std::stringstream came;
    came << std::ifstream(path / kWeights, std::ios::binary).rdbuf();
    return came.str() == text ? absl::OkStatus() : absl::DataLossError("other bytes");
  }));
  told();
  return absl::OkStatus();
}

[[noreturn]] void SendUntilKilled(const fs::path& dir, int ends) {
  UploadStore store(dir, UploadLimits{});
  if (!store.Open().ok()) _exit(1);
  for (size_t upload = 0;; ++upload) {
    const auto told = [&] {
      if (write(ends, "!", 1) != 1) _exit(1);
    };
    if (!SendAll(store, upload, told).ok()) _exit(1);
  }
}

// How many calls had succeeded before the kill, which comes at some moment.
size_t KillWhileItSends(const fs::path& dir, std::mt19937& random) {
  return KillWhileItWorks([&](int end) { SendUntilKilled(dir, end); }, 1 + random() % (3 * kTold),
                          random);
}

TEST(UploadKill, LosesNothingAcknowledgedAndGoesOn) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    std::string name = (fs::temp_directory_path() / "kill-XXXXXX").string();
    const fs::path dir = mkdtemp(name.data());
    const size_t told = KillWhileItSends(dir, random);
    const size_t upload = told / kTold, calls = told % kTold;
    UploadStore store(dir, UploadLimits{});
    ASSERT_TRUE(store.Open().ok());
    const auto state = StartOf(store, upload);
    ASSERT_TRUE(state.ok()) << state.status();
    const size_t received = state->files[1].received;
    const size_t sure = calls == 0 ? 0 : (calls - 1) * kPiece;
    // The call that was not told of may have been done: a piece, whose last byte counts when the
    // whole file was verified, or a Finish, after which this is a new upload.
    const size_t whole = kPiece * kPieces;
    const bool done =
        received == sure + kPiece || (received == whole - 1 && sure + kPiece == whole);
    EXPECT_TRUE(received == sure || done || (calls == kTold - 1 && received == 0))
        << received << " after " << told << " calls";
    EXPECT_EQ(SendAll(store, upload, [] {}), absl::OkStatus());
    EXPECT_TRUE(fs::is_empty(dir));
    fs::remove_all(dir);
  }
}

}  // namespace
}  // namespace rootstock::upload_kill
