// loractl adapter upload, to a coordinator that is only its Uploads service.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/ctl/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/uploads.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

// All bytes are there; another call works on them for the first `busy` Finishes.
class FakeUploads : public v1::Uploads::Service {
 public:
  explicit FakeUploads(int busy) : busy_(busy) {}
  grpc::Status Start(grpc::ServerContext*, const v1::StartUploadRequest* request,
                     v1::Upload* response) override {
    response->set_upload_id("u1");
    for (v1::UploadFile file : request->files()) {
      file.set_received(file.bytes());
      *response->add_files() = file;
    }
    ++starts;
    return grpc::Status::OK;
  }
  grpc::Status Finish(grpc::ServerContext*, const v1::FinishUploadRequest*,
                      v1::RegisterResponse*) override {
    if (busy_-- <= 0) return grpc::Status::OK;
    return {grpc::StatusCode::ABORTED, "upload_id=u1: another call works on it"};
  }
  std::atomic<int> starts = 0;

 private:
  std::atomic<int> busy_;
};

class UploadTest : public ::testing::Test {
 protected:
  UploadTest() {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ / "adapter_config.json") << "{}";
    std::ofstream(dir_ / "adapter_model.safetensors") << "x";
  }
  int Upload(const std::string& name, int busy = 0, double timeout = 0) {
    uploads_ = std::make_unique<FakeUploads>(busy);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(uploads_.get());
    const auto server = builder.BuildAndStart();
    CaptureStderr();
    ::testing::internal::CaptureStdout();
    const int code =
        UploadAdapter({.address = absl::StrCat("127.0.0.1:", port), .timeout_seconds = timeout},
                      name, dir_, false);
    ::testing::internal::GetCapturedStdout();
    errors_ = GetCapturedStderr();
    server->Shutdown();
    return code;
  }
  std::filesystem::path dir_ =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("ctl_upload.", getpid());
  std::unique_ptr<FakeUploads> uploads_;
  std::string errors_;
};

TEST_F(UploadTest, WaitsForAnEarlierCallOnTheSameUpload) {
  EXPECT_EQ(Upload("a", /*busy=*/2), kExitOk) << errors_;
  EXPECT_EQ(uploads_->starts, 3);
  EXPECT_THAT(errors_, HasSubstr("another call works on this upload: waiting"));
}

TEST_F(UploadTest, WaitsNoLongerThanItsTimeout) {
  EXPECT_EQ(Upload("a", /*busy=*/1000, /*timeout=*/0.5), kExitFailed) << errors_;
  EXPECT_LE(uploads_->starts, 4);
  EXPECT_THAT(errors_, HasSubstr("another call works on it"));
}

TEST_F(UploadTest, ABadNameIsRefusedBeforeAnythingIsSent) {
  EXPECT_EQ(Upload("Bad Name"), kExitUsage);
  EXPECT_EQ(uploads_->starts, 0);
  EXPECT_THAT(errors_, HasSubstr("NAME=Bad Name: must match [a-z0-9]"));
}

TEST_F(UploadTest, WhatIsNoFileOfWeightsIsNamed) {
  std::filesystem::remove(dir_ / "adapter_model.safetensors");
  std::ofstream(dir_ / "adapter_model.bin") << "x";
  EXPECT_EQ(Upload("a"), kExitUsage);
  EXPECT_THAT(errors_,
              HasSubstr("adapter_model.safetensors: can't be read: No such file or directory; "
                        "adapter_model.bin, pickled weights, is not read"));
  // Reading a pipe would wait for its writer.
  ASSERT_EQ(mkfifo((dir_ / "adapter_model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(Upload("a"), kExitUsage);
  EXPECT_THAT(errors_, HasSubstr("adapter_model.safetensors: can't be read: no regular file"));
  dir_ /= std::string(300, 'n');
  EXPECT_EQ(Upload("a"), kExitUsage);
  EXPECT_THAT(errors_, HasSubstr("can't be read: File name too long"));
}

}  // namespace
}  // namespace rootstock
