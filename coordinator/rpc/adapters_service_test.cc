#include "coordinator/rpc/adapters_service.h"

#include <grpcpp/grpcpp.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/fake_engine.h"
#include "coordinator/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/adapters.grpc.pb.h"
#include "rootstock/v1/types.pb.h"

namespace rootstock {
namespace {

using ::testing::HasSubstr;

constexpr char kReceipt[] =
    R"({"file_dtype": "F32", "max_rounding": 0.001, "base_model_name": "x/y",
        "modules": [{"module": "model.layers.0.self_attn.q_proj", "lora_rank": 4, "scale": 0.5,
                     "delta_frobenius": 1.25}], "harmless_fields": ["lora_dropout"]})";

// Any directory but "bad" is an adapter on layer 0's q, its content the directory's name.
absl::StatusOr<LoadedAdapter> LoadFake(const std::filesystem::path& directory) {
  const std::string name = directory.filename();
  if (name == "bad") {
    return InvalidField(Reason::kDora, "use_dora", "true", "not served");
  }
  LoraSpec spec{{{.layer = 0, .module = Module::kQ, .lora_rank = 4, .scale = 0.5f}}};
  return LoadedAdapter{Sha256Of(name), spec, kReceipt, name};
}

class AdaptersServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / "adapters_service_test";
    std::filesystem::remove_all(root_);
    for (const char* name : {"one", "two", "bad"}) {
      std::filesystem::create_directories(root_ / "adapters" / name);
    }
    auto registry = Registry::Open({.data_dir = root_ / "data",
                                    .adapter_root = root_ / "adapters",
                                    .base_name = "base",
                                    .loader = LoadFake,
                                    .unix_ms = [] { return int64_t{1000}; }});
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
    auto model = LoadModelSpec(ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama");
    ASSERT_TRUE(model.ok()) << model.status();
    service_ = std::make_unique<AdaptersService>(registry_.get(), &engine_, *model, &pool_);
    auto server = RpcServer::Start("127.0.0.1:0", {service_->service()});
    ASSERT_TRUE(server.ok());
    server_ = *std::move(server);
    stub_ = v1::Adapters::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                      grpc::InsecureChannelCredentials()));
  }

  grpc::Status Register(const std::string& name, const std::string& path, v1::Adapter* out) {
    context_ = std::make_unique<grpc::ClientContext>();
    v1::RegisterRequest request;
    request.set_name(name);
    request.set_path(path);
    v1::RegisterResponse response;
    const grpc::Status status = stub_->Register(context_.get(), request, &response);
    *out = response.adapter();
    return status;
  }
  uint64_t Unregister(const std::string& name) {
    grpc::ClientContext context;
    v1::UnregisterRequest request;
    request.set_name(name);
    v1::UnregisterResponse response;
    EXPECT_TRUE(stub_->Unregister(&context, request, &response).ok());
    return response.freed_bytes();
  }

  std::filesystem::path root_;
  FakeEngine engine_;
  WorkPool pool_{2, 16};
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<AdaptersService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Adapters::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
};

TEST_F(AdaptersServiceTest, RegisterGetListUnregister) {
  GroupStatus group;
  group.info = {.name = "g0", .tp_size = 1};
  group.geometry = {.num_pages = 10, .page_bytes = 65536, .page_tokens = 16};
  group.adapters.push_back({.digest = Sha256Of("one"), .pages = {PageId(3), PageId(4)}});
  engine_.status.groups.push_back(group);

  v1::Adapter adapter;
  const grpc::Status status = Register("pirate", "one", &adapter);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(adapter.name(), "pirate");
  EXPECT_EQ(adapter.tenant(), "default");
  EXPECT_EQ(adapter.digest(), Sha256Of("one").Hex());
  EXPECT_EQ(adapter.receipt().modules(0).module(), "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(adapter.receipt().modules(0).scale(), 0.5f);
  EXPECT_EQ(adapter.receipt().pages(0).group(), "g0");
  EXPECT_EQ(adapter.receipt().pages(0).pages(), 1u);
  EXPECT_EQ(adapter.residency(0).tier(), "device");
  EXPECT_EQ(adapter.residency(0).bytes(), 2u * 65536);

  ASSERT_TRUE(Register("other", "two", &adapter).ok());
  grpc::ClientContext context;
  v1::ListAdaptersResponse list;
  ASSERT_TRUE(stub_->List(&context, v1::ListAdaptersRequest(), &list).ok());
  EXPECT_EQ(list.adapters_size(), 2);

  EXPECT_EQ(Unregister("pirate"), 3u);
  EXPECT_THAT(engine_.dropped, ::testing::ElementsAre(Sha256Of("one")));
  grpc::ClientContext gone;
  v1::GetAdapterRequest request;
  request.set_name("pirate");
  EXPECT_EQ(stub_->Get(&gone, request, &adapter).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdaptersServiceTest, ContentIsDroppedWithItsLastName) {
  v1::Adapter adapter;
  ASSERT_TRUE(Register("a", "one", &adapter).ok());
  ASSERT_TRUE(Register("b", "one", &adapter).ok());
  EXPECT_EQ(Unregister("a"), 0u);
  EXPECT_TRUE(engine_.dropped.empty());
  EXPECT_EQ(Unregister("b"), 3u);
  EXPECT_EQ(engine_.dropped.size(), 1u);
}

TEST_F(AdaptersServiceTest, RefusalsCarryTheirReason) {
  v1::Adapter adapter;
  const grpc::Status status = Register("pirate", "bad", &adapter);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("use_dora"));
  const auto& trailers = context_->GetServerTrailingMetadata();
  const auto it = trailers.find("rootstock-error-detail-bin");
  ASSERT_NE(it, trailers.end());
  v1::ErrorDetail detail;
  detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()));
  EXPECT_EQ(detail.reason(), "dora");
  EXPECT_FALSE(Register("pirate", "../../etc", &adapter).ok());
  ASSERT_TRUE(Register("pirate", "one", &adapter).ok());  // nothing was left behind
  EXPECT_EQ(Register("pirate", "two", &adapter).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

}  // namespace
}  // namespace rootstock
