// Random histories of uploads against the plainest model: pieces, cuts, restarts, wrong bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/content/uploads/upload_store.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr int kOperations = 10000;  // a seed
constexpr const char* kNames[] = {"adapter_config.json", "adapter_model.safetensors"};

// What a client has, and what of it the store should have.
struct ModelFile {
  std::string text;
  std::string received;
};
struct ModelUpload {
  std::string tenant, id;
  ModelFile files[2];
  bool is_complete() const {
    return std::all_of(std::begin(files), std::end(files),
                       [](const ModelFile& f) { return f.text.size() == f.received.size(); });
  }
};

class UploadLives : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "lives-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    Restart();
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Restart() {
    store_ = std::make_unique<UploadStore>(dir_, UploadLimits{});
    ASSERT_TRUE(store_->Open().ok());
  }
  // As far as it is unfinished, it goes on.
  void Start() {
    const std::string tenant = absl::StrCat("t", random_() % 2);
    const size_t which = random_() % 6;
    ModelUpload fresh{tenant, "", {{std::string(1 + which, 'c'), ""}, {"", ""}}};
    for (size_t i = 0; i < 20 + which * 37; ++i) fresh.files[1].text += static_cast<char>(i * 7);
    std::vector<UploadFile> files;
    for (int i = 0; i < 2; ++i) {
      files.push_back({kNames[i], fresh.files[i].text.size(), Sha256Of(fresh.files[i].text)});
    }
    const auto state = store_->Start(tenant, files);
    ASSERT_TRUE(state.ok()) << state.status();
    fresh.id = state->id;
    uploads_.emplace(state->id, fresh);
  }
  ModelUpload* Pick() {
    if (uploads_.empty()) return nullptr;
    return &std::next(uploads_.begin(), random_() % uploads_.size())->second;
  }
  // A few pieces by one writer, who then is cut off.
  void Write(ModelUpload& upload) {
    const auto writer = store_->Write(upload.tenant, upload.id);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE(absl::IsAborted(store_->Abort(upload.tenant, upload.id)));
    for (uint32_t n = 1 + random_() % 3; n > 0; --n) Append(**writer, upload);
  }
  void Append(UploadStore::Writer& writer, ModelUpload& upload) {
    const int which = random_() % 3 == 0 ? 0 : 1;
    ModelFile& file = upload.files[which];
    const size_t left = file.text.size() - file.received.size();
    const size_t offset = file.received.size() + (random_() % 8 == 0 ? 1 : 0);
    std::string piece = file.text.substr(file.received.size(), 1 + random_() % 60);
    if (random_() % 10 == 0) piece += "more than was announced";
    if (random_() % 10 == 0 && !piece.empty()) piece[random_() % piece.size()] ^= 1;
    const absl::StatusCode code = writer.Append(kNames[which], offset, piece).code();
    if (offset != file.received.size()) {
      EXPECT_EQ(code, absl::StatusCode::kFailedPrecondition);
    } else if (piece.size() > left) {
      EXPECT_EQ(code, absl::StatusCode::kInvalidArgument);
    } else {
      file.received += piece;
      const bool is_wrong = piece.size() == left && left > 0 && file.received != file.text;
      EXPECT_EQ(code, is_wrong ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
      if (is_wrong) file.received.clear();
    }
  }
  void Finish(const ModelUpload& upload) {
    const absl::Status outcomes[] = {
        absl::OkStatus(), InvalidField(Reason::kDora, "use_dora", "true", "no"),
        MakeError(absl::StatusCode::kAlreadyExists, Reason::kNameTaken, "name", "x", "taken")};
    const absl::Status& outcome = outcomes[random_() % 3];
    const absl::Status got = store_->Finish(upload.tenant, upload.id, [&](const fs::path& path) {
      for (int i = 0; i < 2; ++i) {
        std::stringstream text;
        text << std::ifstream(path / kNames[i], std::ios::binary).rdbuf();
        EXPECT_EQ(text.str(), upload.files[i].text);
      }
      return outcome;
    });
    if (!upload.is_complete()) {
      EXPECT_EQ(got.code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    EXPECT_EQ(got, outcome);
    ++finished_;
    if (!absl::IsAlreadyExists(outcome)) uploads_.erase(upload.id);
  }
  void Abort(const ModelUpload& upload) {
    EXPECT_TRUE(store_->Abort("another", upload.id).ok());  // and changes nothing
    EXPECT_TRUE(store_->Abort(upload.tenant, upload.id).ok());
    uploads_.erase(upload.id);
  }
  void Operation() {
    const uint32_t what = random_() % 30;
    ModelUpload* const upload = Pick();
    if (what == 0) return Restart();
    if (what < 4 || upload == nullptr) return Start();
    if (what < 24) return Write(*upload);
    if (what < 28) return Finish(*upload);
    if (what == 28) Abort(*upload);
  }
  void Check() const {
    size_t there = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir_)) ++there;
    EXPECT_EQ(there, uploads_.size());
    for (const auto& [id, upload] : uploads_) {
      const auto state = store_->Get(upload.tenant, id);
      ASSERT_TRUE(state.ok()) << state.status();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(state->files[i].name, kNames[i]);
        EXPECT_EQ(state->files[i].received, upload.files[i].received.size());
      }
      EXPECT_EQ(state->is_complete(), upload.is_complete());
      EXPECT_TRUE(absl::IsNotFound(store_->Get("another", id).status()));
    }
  }

  std::mt19937 random_{GetParam()};
  fs::path dir_;
  std::unique_ptr<UploadStore> store_;
  std::map<std::string, ModelUpload> uploads_;  // by id
  int finished_ = 0;
};

TEST_P(UploadLives, TheStoreIsItsModelAfterEveryOperation) {
  for (int i = 0; i < kOperations && !HasFailure(); ++i) {
    Operation();
    Check();
  }
  EXPECT_GT(finished_, kOperations / 50);
}

INSTANTIATE_TEST_SUITE_P(Seeds, UploadLives, testing::Values(1, 2));

}  // namespace
}  // namespace rootstock
