// Uploads of a RandomLife, one at a time, in pieces.
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/engine/testing/random_life.h"

namespace rootstock {
namespace {

constexpr const char* kFiles[] = {"adapter_config.json", "adapter_model.safetensors"};

std::string TextOf(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

void RandomLife::OpenUploads() {
  uploads_ = std::make_unique<UploadStore>(world_.directory / "uploads", UploadLimits{});
  EXPECT_TRUE(uploads_->Open().ok());
}

// Begins one, sends pieces of it, or makes it an adapter.
bool RandomLife::Upload() {
  if (!uploading_) return StartUpload();
  WriteUpload(*uploading_);
  if (uploading_->received[0] == uploading_->texts[0].size() &&
      uploading_->received[1] == uploading_->texts[1].size()) {
    FinishUpload();
  }
  return true;
}

bool RandomLife::StartUpload() {
  const uint64_t number = next_upload_++;
  Uploading fresh{"", absl::StrCat("up", number % 3), {absl::StrCat("config ", number), ""}};
  fresh.texts[1] = std::string(20 + number % 7 * 13, static_cast<char>('a' + number % 26));
  std::vector<UploadFile> files;
  for (size_t i = 0; i < 2; ++i) {
    files.push_back({kFiles[i], fresh.texts[i].size(), Sha256Of(fresh.texts[i])});
  }
  const auto state = uploads_->Start("default", files);
  EXPECT_TRUE(state.ok()) << state.status();
  if (!state.ok()) return false;
  fresh.id = state->id;
  uploading_ = std::move(fresh);
  return true;
}

// From where the store says that it ends, as a client does that was cut off.
void RandomLife::WriteUpload(Uploading& upload) {
  const auto writer = uploads_->Write("default", upload.id);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ((*writer)->state().files[i].received, upload.received[i]);
    const std::string rest = upload.texts[i].substr(upload.received[i]);
    if (rest.empty()) continue;
    const std::string piece = rest.substr(0, 1 + random_() % (2 * rest.size()));
    const absl::Status sent = (*writer)->Append(kFiles[i], upload.received[i], piece);
    ASSERT_TRUE(sent.ok()) << sent;
    upload.received[i] += piece.size();
  }
}

void RandomLife::FinishUpload() {
  const Uploading upload = *std::exchange(uploading_, std::nullopt);
  const absl::Status done =
      uploads_->Finish("default", upload.id, [&](const std::filesystem::path& path) {
        for (size_t i = 0; i < 2; ++i) EXPECT_EQ(TextOf(path / kFiles[i]), upload.texts[i]);
        const auto entry = world_.registry->RegisterDirectory(upload.name, path.string(), "default",
                                                              /*new_version=*/true);
        if (entry.ok()) contents_.insert(entry->digest);
        return entry.status();
      });
  EXPECT_TRUE(done.ok()) << done;
}

}  // namespace rootstock
