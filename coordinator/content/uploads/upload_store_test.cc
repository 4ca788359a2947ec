#include "coordinator/content/uploads/upload_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "common/base/status.h"
#include "common/objects/sync_log.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kConfig[] = "adapter_config.json";
constexpr char kWeights[] = "adapter_model.safetensors";

std::string ReadFile(const fs::path& path) {
  std::stringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

class UploadStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "uploads-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    Reopen();
  }
  void TearDown() override { fs::remove_all(dir_); }

  // As a coordinator that starts again would find it.
  void Reopen() {
    store_ = std::make_unique<UploadStore>(
        dir_, limits_, [this] { return now_; }, [this] { return room_; });
    ASSERT_TRUE(store_->Open().ok());
  }
  std::vector<UploadFile> Files() const {
    return {{kWeights, weights_.size(), Sha256Of(weights_)},
            {kConfig, config_.size(), Sha256Of(config_)}};
  }
  absl::Status Send(const std::string& id, const std::string& file, uint64_t offset,
                    std::string_view bytes) {
    auto writer = store_->Write("t", id);
    if (!writer.ok()) return writer.status();
    return (*writer)->Append(file, offset, bytes);
  }
  Reason ReasonOf(const absl::Status& status) const {
    const auto detail = GetErrorDetail(status);
    return detail ? detail->reason : Reason::kInternal;
  }
  Reason Refusal(std::vector<UploadFile> files) const {
    return ReasonOf(store_->Start("t", std::move(files)).status());
  }
  absl::Status Finish(const std::string& id) {
    return store_->Finish("t", id, [&](const fs::path& path) {
      seen_ = {ReadFile(path / kConfig), ReadFile(path / kWeights)};
      return use_;
    });
  }

  fs::path dir_;
  UploadLimits limits_{.max_config_bytes = 100,
                       .max_weights_bytes = 1000,
                       .max_tenant_bytes = 1500,
                       .max_bytes = 2000,
                       .max_tenant_uploads = 3};
  uint64_t room_ = 1 << 20;
  UploadIndex::Time now_ = UploadIndex::Time::clock::now();
  std::unique_ptr<UploadStore> store_;
  std::string config_ = "{}", weights_ = "0123456789";
  std::pair<std::string, std::string> seen_;
  absl::Status use_;
};

TEST_F(UploadStoreTest, TakesPiecesAndHandsOverTheDirectory) {
  const auto state = store_->Start("t", Files());
  ASSERT_TRUE(state.ok()) << state.status();
  {
    const auto writer = *store_->Write("t", state->id);
    EXPECT_TRUE(writer->Append(kWeights, 0, "01234").ok());
    EXPECT_TRUE(writer->Append(kConfig, 0, config_).ok());
    EXPECT_TRUE(writer->Append(kWeights, 5, "56789").ok());
    EXPECT_TRUE(writer->state().is_complete());
  }
  EXPECT_TRUE(Finish(state->id).ok());
  EXPECT_EQ(seen_.first, config_);
  EXPECT_EQ(seen_.second, weights_);
  EXPECT_TRUE(absl::IsNotFound(store_->Get("t", state->id).status()));
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(UploadStoreTest, GoesOnAfterARestartFromWhereItWas) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kWeights, 0, "0123").ok());
  Reopen();
  const auto again = store_->Start("t", Files());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, id);
  EXPECT_EQ(again->files[1].name, kWeights);
  EXPECT_EQ(again->files[1].received, 4u);
  const absl::Status gap = Send(id, kWeights, 5, "56789");
  EXPECT_EQ(gap.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gap.message()),
              HasSubstr("offset=5: adapter_model.safetensors ends at 4"));
  EXPECT_TRUE(Send(id, kWeights, 4, "456789").ok());  // verified with what lay there
  EXPECT_TRUE(Send(id, kConfig, 0, config_).ok());
  EXPECT_TRUE(Finish(id).ok());
  EXPECT_EQ(seen_.second, weights_);
}

TEST_F(UploadStoreTest, AManifestThatADiskSpoiltIsForgotten) {
  const std::string file =
      R"({"name": "a", "bytes": 1, "sha256": ")" + std::string(64, 'a') + "\"}";
  for (const std::string& manifest :
       {std::string(), std::string("[]"), std::string("{\"tenant\": 1, \"files\": []}"),
        std::string("{\"tenant\": \"t\"}"), std::string("{\"tenant\": \"t\", \"files\": [1]}"),
        std::string("{\"tenant\": \"t\", \"files\": [{}]}"), "{\"files\": [" + file + "]}"}) {
    const std::string id = store_->Start("t", Files())->id;
    const fs::path path = fs::directory_iterator(dir_ / id)->path();
    std::ofstream(path) << manifest;
    Reopen();
    EXPECT_TRUE(absl::IsNotFound(store_->Get("t", id).status())) << manifest;
  }
}

// A read that fails says nothing of the upload: at the next start it goes on.
TEST_F(UploadStoreTest, AManifestThatCannotBeReadNowLosesNothing) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kWeights, 0, "0123").ok());
  fs::path path;
  for (const auto& entry : fs::directory_iterator(dir_ / id)) {
    if (entry.path().extension() != ".part") path = entry.path();
  }
  fs::rename(path, dir_.string() + ".manifest");
  fs::create_symlink("/proc/self/mem", path);  // opens; reads end with EIO
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(store_->Get("t", id).status()));
  fs::rename(dir_.string() + ".manifest", path);
  Reopen();
  const auto again = store_->Get("t", id);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->files[1].received, 4u);
}

// Nobody's upload becomes another's, nor another one.
TEST_F(UploadStoreTest, AManifestThatADiskSpoiltALittleIsForgotten) {
  for (const std::pair<std::string, std::string>& change :
       {std::pair<std::string, std::string>{"\"tenant\":\"t\"", "\"tenant\":\"u\""},
        {kWeights, "../model.safetensors"},
        {"\"bytes\":", "\"bytes\":1"},
        {"\"sha256\":\"", "\"sha256\":\"00"}}) {
    const std::string id = store_->Start("t", Files())->id;
    const fs::path path = fs::directory_iterator(dir_ / id)->path();
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    std::string manifest = text.str();
    const size_t at = manifest.find(change.first);
    ASSERT_NE(at, std::string::npos);
    manifest.replace(at, change.first.size(), change.second);
    std::ofstream(path) << manifest;
    Reopen();
    for (const char* tenant : {"t", "u"}) {
      EXPECT_TRUE(absl::IsNotFound(store_->Get(tenant, id).status())) << manifest;
    }
  }
}

TEST_F(UploadStoreTest, WhatWasNotVerifiedIsNotComplete) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kConfig, 0, config_).ok());
  // Killed between the last byte and the check; and the disk holds other bytes.
  std::ofstream(dir_ / id / (std::string(kWeights) + ".part")) << "0123x56789";
  Reopen();
  EXPECT_EQ(store_->Get("t", id)->files[1].received, 9u);
  EXPECT_EQ(Finish(id).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status spoilt = Send(id, kWeights, 9, "9");
  EXPECT_EQ(spoilt.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(spoilt), Reason::kDigestMismatch);
  EXPECT_EQ(store_->Get("t", id)->files[1].received, 0u);
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  EXPECT_TRUE(Finish(id).ok());
}

TEST_F(UploadStoreTest, FlippedBytesAreRefusedAndCanBeSentAgain) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_EQ(ReasonOf(Send(id, kWeights, 0, "012345678x")), Reason::kDigestMismatch);
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
}

TEST_F(UploadStoreTest, RefusesFilesBeforeAnythingIsAllocated) {
  const UploadFile config{kConfig, 2, Sha256Of("{}")};
  const UploadFile weights{kWeights, 10, Sha256Of(weights_)};
  EXPECT_EQ(Refusal({config, {"adapter_model.bin", 10, {}}}), Reason::kPickle);
  EXPECT_EQ(Refusal({config, {"adapter_model.pt", 10, {}}}), Reason::kPickle);
  EXPECT_EQ(Refusal({config, {"../x", 10, {}}}), Reason::kPathInvalid);
  EXPECT_EQ(Refusal({config, weights, weights}), Reason::kDuplicate);
  EXPECT_EQ(Refusal({config}), Reason::kConfigInvalid);
  EXPECT_EQ(Refusal({}), Reason::kConfigInvalid);
  EXPECT_EQ(Refusal({config, {kWeights, 1001, {}}}), Reason::kSizeLimit);
  EXPECT_EQ(Refusal({config, {kWeights, 0, {}}}), Reason::kSizeLimit);
  EXPECT_EQ(Refusal({{kConfig, 101, {}}, weights}), Reason::kSizeLimit);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(UploadStoreTest, WhatCameCountsAndNotWhatIsAnnounced) {
  const std::string large(900, 'x');
  const auto start = [&](const std::string& tenant, const std::string& config) {
    return store_->Start(tenant, {{kConfig, config.size(), Sha256Of(config)},
                                  {kWeights, large.size(), Sha256Of(large)}});
  };
  const std::string first = start("t", "1")->id;
  const std::string second = start("t", "22")->id;
  EXPECT_TRUE(Send(first, kWeights, 0, large).ok());
  EXPECT_EQ(ReasonOf(start("t", "333").status()), Reason::kQuota);  // could not end
  EXPECT_TRUE(Send(second, kWeights, 0, std::string_view(large).substr(0, 500)).ok());
  const absl::Status full = Send(second, kWeights, 500, std::string_view(large).substr(0, 101));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), Reason::kQuota);
  // Others have their own, also after a restart.
  EXPECT_TRUE(start("u", "1").status().code() == absl::StatusCode::kResourceExhausted);  // all
  EXPECT_TRUE(store_->Start("u", Files()).ok());
  Reopen();
  EXPECT_EQ(ReasonOf(Send(second, kWeights, 500, std::string_view(large).substr(0, 101))),
            Reason::kQuota);
  EXPECT_TRUE(store_->Abort("t", first).ok());
  EXPECT_TRUE(Send(second, kWeights, 500, std::string_view(large).substr(500)).ok());
}

TEST_F(UploadStoreTest, WhatDoesNotFitIsRefusedByItsAnnouncement) {
  room_ = 11;  // of 12
  const auto refused = store_->Start("t", Files());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kNoSpace);
  EXPECT_TRUE(fs::is_empty(dir_));
  room_ = 12;
  const auto state = store_->Start("t", Files());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(Send(state->id, kWeights, 0, "0123").ok());
  room_ = 5;  // others took it meanwhile
  EXPECT_EQ(ReasonOf(Send(state->id, kWeights, 4, "456789")), Reason::kNoSpace);
  EXPECT_EQ(store_->Get("t", state->id)->files[1].received, 4u);  // it may go on
  room_ = 6;
  EXPECT_TRUE(Send(state->id, kWeights, 4, "456789").ok());
}

// Nothing of it stays where the registry can't write any more.
TEST_F(UploadStoreTest, WhatMeetsAFullDiskIsGivenBack) {
  weights_.assign(600, 'w');
  const auto state = store_->Start("t", Files());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(Send(state->id, kWeights, 0, std::string(300, 'w')).ok());
  const fs::path part = dir_ / state->id / (std::string(kWeights) + ".part");
  EXPECT_TRUE(fs::exists(part));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit full{400, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const absl::Status sent = Send(state->id, kWeights, 300, std::string(300, 'w'));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(sent.ok());
  EXPECT_FALSE(fs::exists(part));
  EXPECT_EQ(store_->Get("t", state->id)->files[1].received, 0u);
  EXPECT_TRUE(Send(state->id, kWeights, 0, weights_).ok());
}

TEST_F(UploadStoreTest, ATenantHasSoManyAtATime) {
  const auto start = [&](const std::string& tenant, uint64_t config_bytes) {
    return store_->Start(tenant, {{kConfig, config_bytes, {}}, {kWeights, 1, {}}});
  };
  for (const uint64_t bytes : {1, 2, 3}) EXPECT_TRUE(start("t", bytes).ok());
  const absl::Status fourth = start("t", 4).status();
  EXPECT_EQ(ReasonOf(fourth), Reason::kQuota);
  EXPECT_THAT(std::string(fourth.message()),
              HasSubstr("tenant=t: has 3 unfinished uploads, the most that are allowed"));
  EXPECT_TRUE(start("t", 3).ok());  // is there already
  EXPECT_TRUE(start("u", 4).ok());
}

TEST_F(UploadStoreTest, ExpiresADayAfterItsLastPiece) {
  const std::string kept = store_->Start("t", Files())->id;
  const std::string old = store_->Start("u", Files())->id;
  now_ += std::chrono::hours(23);
  EXPECT_TRUE(Send(kept, kWeights, 0, "0123").ok());
  now_ += std::chrono::hours(2);
  EXPECT_TRUE(store_->Start("v", Files()).ok());
  EXPECT_EQ(store_->Get("t", kept)->files[1].received, 4u);
  EXPECT_TRUE(absl::IsNotFound(store_->Get("u", old).status()));
  EXPECT_FALSE(fs::exists(dir_ / old));
  // And by the files' times when the process starts again.
  now_ = UploadIndex::Time::clock::now();
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / kept)) {
    fs::last_write_time(entry, now_ - std::chrono::hours(25));
  }
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(store_->Get("t", kept).status()));
  EXPECT_FALSE(fs::exists(dir_ / kept));
}

TEST_F(UploadStoreTest, AFileIsOnTheDiskBeforeItIsWhole) {
  const std::string id = store_->Start("t", Files())->id;
  const SyncLog log;
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  const fs::path dir = fs::canonical(dir_) / id;
  EXPECT_THAT(log.paths(),
              testing::ElementsAre(dir / (std::string(kWeights) + ".part"), dir.string()));
}

TEST_F(UploadStoreTest, AFileThatLostItsBytesIsNotWhole) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kConfig, 0, config_).ok());
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  fs::resize_file(dir_ / id / kWeights, 0);  // as a crash of the machine could leave it
  Reopen();
  EXPECT_EQ(store_->Get("t", id)->files[1].received, 0u);
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  EXPECT_TRUE(Finish(id).ok());
  EXPECT_EQ(seen_.second, weights_);
}

TEST_F(UploadStoreTest, TakesNoMoreThanWasAnnounced) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_EQ(ReasonOf(Send(id, kWeights, 0, "01234567890")), Reason::kSizeLimit);
  EXPECT_EQ(ReasonOf(Send(id, "x", 0, "0")), Reason::kInvalidArgument);
  EXPECT_EQ(store_->Get("t", id)->files[1].received, 0u);
}

TEST_F(UploadStoreTest, OthersCannotSeeOrTouchIt) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_NE(store_->Start("u", Files())->id, id);
  for (const std::string& bad : {id, std::string("../x"), std::string(32, 'a'), std::string()}) {
    EXPECT_TRUE(absl::IsNotFound(store_->Get("u", bad).status())) << bad;
    EXPECT_TRUE(absl::IsNotFound(store_->Write("u", bad).status())) << bad;
    EXPECT_TRUE(store_->Abort("u", bad).ok()) << bad;
  }
  EXPECT_TRUE(store_->Get("t", id).ok());
}

TEST_F(UploadStoreTest, HasOneWriter) {
  const std::string id = store_->Start("t", Files())->id;
  auto writer = *store_->Write("t", id);
  EXPECT_EQ(store_->Write("t", id).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Finish(id).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->Abort("t", id).code(), absl::StatusCode::kAborted);
  writer.reset();
  EXPECT_TRUE(store_->Write("t", id).ok());
  EXPECT_TRUE(store_->Abort("t", id).ok());
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(UploadStoreTest, KeepsWhatMayBeUsedYetAndGivesBackWhatMayNot) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kConfig, 0, config_).ok());
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  for (const absl::Status& later :
       {absl::AlreadyExistsError("name"), absl::ResourceExhaustedError("disk"),
        InvalidField(Reason::kInvalidArgument, "name", "A", "bad")}) {
    use_ = later;
    EXPECT_EQ(Finish(id), later);
    EXPECT_TRUE(fs::exists(dir_ / id));
  }
  use_ = InvalidField(Reason::kDora, "use_dora", "true", "no");
  EXPECT_EQ(ReasonOf(Finish(id)), Reason::kDora);
  EXPECT_TRUE(fs::is_empty(dir_));
  EXPECT_TRUE(absl::IsNotFound(Finish(id)));
  // Nothing of it counts any more.
  for (int i = 0; i < 5; ++i) {
    const std::string again = store_->Start("t", Files())->id;
    EXPECT_TRUE(Send(again, kConfig, 0, config_).ok());
    EXPECT_TRUE(Send(again, kWeights, 0, weights_).ok());
    EXPECT_EQ(ReasonOf(Finish(again)), Reason::kDora);
  }
}

}  // namespace
}  // namespace rootstock
