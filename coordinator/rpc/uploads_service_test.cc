#include "coordinator/rpc/uploads_service.h"

#include <fstream>
#include <sstream>

#include "coordinator/rpc/adapters_service_fixture.h"
#include "gmock/gmock.h"
#include "rootstock/v1/types.pb.h"
#include "rootstock/v1/uploads.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = "adapter_config.json";
constexpr char kWeights[] = "adapter_model.safetensors";

// An Uploads service over a registry whose adapters' content is their weights file.
class UploadsServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / "uploads_service_test";
    std::filesystem::remove_all(root_);
    registry_ = *Registry::Open(
        {.data_dir = root_ / "data", .base_name = "base", .loader = LoadWeightsFile, .unix_ms = [] {
           return int64_t{1000};
         }});
    uploads_ = std::make_unique<UploadStore>(root_ / "uploads", UploadLimits{});
    ASSERT_TRUE(uploads_->Open().ok());
    const auto model = LoadModelSpec(ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama");
    service_ = std::make_unique<UploadsService>(uploads_.get(), registry_.get(), &engine_, *model,
                                                &pool_, &registrations_, UploadMetrics(metrics_));
    server_ = *RpcServer::Start("127.0.0.1:0", {service_->service()});
    stub_ = v1::Uploads::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                     grpc::InsecureChannelCredentials()));
  }

  static absl::StatusOr<LoadedAdapter> LoadWeightsFile(const std::filesystem::path& directory) {
    std::stringstream bytes;
    bytes << std::ifstream(directory / kWeights).rdbuf();
    if (bytes.str() == "dora") return InvalidField(Reason::kDora, "use_dora", "true", "no");
    LoraSpec spec{{{.layer = 0, .module = Module::kQ, .lora_rank = 4, .scale = 0.5f}}};
    return LoadedAdapter{Sha256Of(bytes.str()), spec, kReceipt, bytes.str()};
  }

  grpc::Status Start(const std::string& weights, v1::Upload* upload) {
    v1::StartUploadRequest request;
    for (const auto& [name, bytes] :
         {std::pair<std::string, std::string>(kConfig, "{}"), {kWeights, weights}}) {
      v1::UploadFile* file = request.add_files();
      file->set_name(name);
      file->set_bytes(bytes.size());
      const Digest digest = Sha256Of(bytes);
      file->set_sha256(digest.bytes.data(), digest.bytes.size());
    }
    grpc::ClientContext context;
    return stub_->Start(&context, request, upload);
  }
  struct Piece {
    std::string file;
    uint64_t offset;
    std::string data;
  };
  grpc::Status Write(const std::string& id, const std::vector<Piece>& pieces, v1::Upload* upload) {
    grpc::ClientContext context;
    const auto stream = stub_->Write(&context, upload);
    v1::WriteUploadRequest request;
    request.set_upload_id(id);
    for (const Piece& piece : pieces) {
      request.set_file(piece.file);
      request.set_offset(piece.offset);
      request.set_data(piece.data);
      if (!stream->Write(request)) break;
      request.clear_upload_id();
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    reason_ = ReasonOf(context);
    return status;
  }
  grpc::Status Finish(const std::string& id, const std::string& name, v1::Adapter* adapter) {
    grpc::ClientContext context;
    v1::FinishUploadRequest request;
    request.set_upload_id(id);
    request.set_name(name);
    v1::RegisterResponse response;
    const grpc::Status status = stub_->Finish(&context, request, &response);
    *adapter = response.adapter();
    reason_ = ReasonOf(context);
    return status;
  }
  int Counted(const std::string& result) const {
    const std::string text = metrics_.Text();
    const std::string name =
        absl::StrCat("rootstock_adapter_upload_total{result=\"", result, "\"} ");
    return std::atoi(text.c_str() + text.find(name) + name.size());
  }
  static std::string ReasonOf(const grpc::ClientContext& context) {
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto it = trailers.find("rootstock-error-detail-bin");
    v1::ErrorDetail detail;
    if (it == trailers.end()) return "";
    detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
    return detail.reason();
  }

  std::filesystem::path root_;
  Metrics metrics_;
  FakeEngine engine_;
  WorkPool pool_{2, 16};
  WorkPool registrations_{2, 16, "registrations"};
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<UploadStore> uploads_;
  std::unique_ptr<UploadsService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Uploads::Stub> stub_;
  std::string reason_;  // of the call before
};

TEST_F(UploadsServiceTest, RegistersWhatCame) {
  v1::Upload upload;
  ASSERT_TRUE(Start("weights", &upload).ok());
  v1::Upload written;
  const grpc::Status status =
      Write(upload.upload_id(), {{kConfig, 0, "{}"}, {kWeights, 0, "wei"}, {kWeights, 3, "ghts"}},
            &written);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(written.files(1).received(), 7u);
  v1::Adapter adapter;
  ASSERT_TRUE(Finish(upload.upload_id(), "pirate", &adapter).ok());
  EXPECT_EQ(adapter.name(), "pirate");
  EXPECT_EQ(adapter.digest(), Sha256Of("weights").Hex());
  EXPECT_EQ(adapter.receipt().modules(0).lora_rank(), 4);
  EXPECT_TRUE(registry_->Resolve("pirate", "default", "r").ok());
  EXPECT_EQ(Counted("ok"), 1);
  EXPECT_EQ(Counted("rejected"), 0);
}

TEST_F(UploadsServiceTest, ACutStreamIsTakenUpWhereItEnded) {
  v1::Upload upload;
  ASSERT_TRUE(Start("weights", &upload).ok());
  v1::Upload written;
  const grpc::Status gap =
      Write(upload.upload_id(), {{kWeights, 0, "wei"}, {kWeights, 5, "ts"}, {kConfig, 0, "{}"}},
            &written);
  EXPECT_EQ(gap.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(gap.error_message(), HasSubstr("offset=5: adapter_model.safetensors ends at 3"));
  v1::Adapter adapter;
  EXPECT_EQ(Finish(upload.upload_id(), "pirate", &adapter).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(reason_, "truncated");
  v1::Upload again;
  ASSERT_TRUE(Start("weights", &again).ok());
  EXPECT_EQ(again.upload_id(), upload.upload_id());
  EXPECT_EQ(again.files(0).received(), 0u);
  EXPECT_EQ(again.files(1).received(), 3u);
  EXPECT_TRUE(
      Write(upload.upload_id(), {{kWeights, 3, "ghts"}, {kConfig, 0, "{}"}}, &written).ok());
  EXPECT_TRUE(Finish(upload.upload_id(), "pirate", &adapter).ok());
}

TEST_F(UploadsServiceTest, WhatIsRefusedIsNotRegisteredAndForgotten) {
  v1::Upload upload;
  ASSERT_TRUE(Start("dora", &upload).ok());
  v1::Upload written;
  ASSERT_TRUE(
      Write(upload.upload_id(), {{kConfig, 0, "{}"}, {kWeights, 0, "dora"}}, &written).ok());
  v1::Adapter adapter;
  EXPECT_EQ(Finish(upload.upload_id(), "pirate", &adapter).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reason_, "dora");
  EXPECT_EQ(registry_->size(), 0u);
  EXPECT_EQ(Counted("rejected"), 1);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "uploads"));
}

TEST_F(UploadsServiceTest, WhatWasRefusedForItsNameCanBeFinishedUnderAnother) {
  v1::Upload upload, written;
  ASSERT_TRUE(Start("weights", &upload).ok());
  ASSERT_TRUE(
      Write(upload.upload_id(), {{kConfig, 0, "{}"}, {kWeights, 0, "weights"}}, &written).ok());
  v1::Adapter adapter;
  EXPECT_EQ(Finish(upload.upload_id(), "base", &adapter).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Finish(upload.upload_id(), "No Name", &adapter).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Finish(upload.upload_id(), "pirate", &adapter).ok());
  EXPECT_EQ(Counted("rejected"), 2);
  EXPECT_EQ(Counted("ok"), 1);
}

// The answer of the first call may have been lost.
TEST_F(UploadsServiceTest, FinishMayBeToldAgain) {
  v1::Upload upload, written;
  ASSERT_TRUE(Start("weights", &upload).ok());
  ASSERT_TRUE(
      Write(upload.upload_id(), {{kConfig, 0, "{}"}, {kWeights, 0, "weights"}}, &written).ok());
  v1::Adapter first, again;
  ASSERT_TRUE(Finish(upload.upload_id(), "pirate", &first).ok());
  ASSERT_TRUE(Finish(upload.upload_id(), "pirate", &again).ok());
  EXPECT_EQ(again.SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(Counted("ok"), 1);
  EXPECT_EQ(Finish(upload.upload_id(), "other", &again).error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(registry_->Unregister("pirate", "default").ok());
  EXPECT_EQ(Finish(upload.upload_id(), "pirate", &again).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(UploadsServiceTest, WhatIsNotWantedIsAborted) {
  v1::Upload upload, written;
  ASSERT_TRUE(Start("weights", &upload).ok());
  ASSERT_TRUE(Write(upload.upload_id(), {{kConfig, 0, "{}"}}, &written).ok());
  grpc::ClientContext context;
  v1::AbortUploadRequest request;
  request.set_upload_id(upload.upload_id());
  v1::AbortUploadResponse response;
  EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "uploads"));
}

TEST_F(UploadsServiceTest, StreamsWithoutAnUploadEndByName) {
  v1::Upload written;
  EXPECT_EQ(Write("", {}, &written).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status unknown = Write("0123", {{kConfig, 0, "{}"}}, &written);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), HasSubstr("upload_id=0123"));
}

}  // namespace
}  // namespace rootstock
