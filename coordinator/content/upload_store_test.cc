#include "coordinator/content/upload_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/base/status.h"

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
    store_ = std::make_unique<UploadStore>(dir_, limits_);
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
  UploadLimits limits_{.max_config_bytes = 100, .max_weights_bytes = 1000, .max_bytes = 1500};
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

TEST_F(UploadStoreTest, UnfinishedOnesHaveABudgetAndExpire) {
  ASSERT_TRUE(store_->Start("t", {{kConfig, 2, {}}, {kWeights, 900, {}}}).ok());
  const auto second = store_->Start("t", {{kConfig, 3, {}}, {kWeights, 900, {}}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(second.status()), Reason::kQuota);
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    if (entry.is_regular_file()) {
      fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(25));
    }
  }
  EXPECT_TRUE(store_->Start("t", {{kConfig, 3, {}}, {kWeights, 900, {}}}).ok());
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

TEST_F(UploadStoreTest, KeepsWhatWasNotUsed) {
  const std::string id = store_->Start("t", Files())->id;
  EXPECT_TRUE(Send(id, kConfig, 0, config_).ok());
  EXPECT_TRUE(Send(id, kWeights, 0, weights_).ok());
  use_ = absl::AlreadyExistsError("name");
  EXPECT_TRUE(absl::IsAlreadyExists(Finish(id)));
  use_ = absl::OkStatus();
  EXPECT_TRUE(Finish(id).ok());
}

}  // namespace
}  // namespace rootstock
