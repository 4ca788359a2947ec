// For tests: an Adapters service over a registry whose adapters are invented.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/adapters_service.h"
#include "coordinator/rpc/aliases_service.h"
#include "coordinator/rpc/fake_engine.h"
#include "coordinator/rpc/server.h"
#include "gtest/gtest.h"
#include "rootstock/v1/adapters.grpc.pb.h"
#include "rootstock/v1/aliases.grpc.pb.h"

namespace rootstock {

inline constexpr char kReceipt[] =
    R"({"file_dtype": "F32", "max_rounding": 0.001,
        "modules": [{"module": "model.layers.0.self_attn.q_proj", "lora_rank": 4, "scale": 0.5,
                     "delta_frobenius": 1.25}]})";

// The receipt of an adapter of every linear layer: 200 of them are more than a message may hold.
inline std::string LongReceipt() {
  std::string modules;
  for (int i = 0; i < 210; ++i) {
    absl::StrAppend(&modules, i > 0 ? "," : "", R"({"module": "model.layers.)", i,
                    R"(.self_attn.gate_and_up_projection", "lora_rank": 4, "scale": 0.5,)",
                    R"("delta_frobenius": 1.25, "lora_alpha": 16})");
  }
  return absl::StrCat(R"({"modules": [)", modules, "]}");
}

// Where readers of the directory "slow" wait until the test lets them go on. Thread-safe.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void WaitForReaders(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ >= count; });
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool open_ = false;
};

// Of a directory that is held open its path is another one.
inline std::string NameOf(const std::filesystem::path& directory) {
  return std::filesystem::weakly_canonical(directory).filename();
}

// Any directory but "bad" is an adapter on layer 0's q, its content the directory's name.
inline absl::StatusOr<LoadedAdapter> LoadFake(const std::filesystem::path& directory) {
  const std::string name = NameOf(directory);
  if (name == "bad") {
    return InvalidField(Reason::kDora, "use_dora", "true", "not served");
  }
  LoraSpec spec{{{.layer = 0, .module = Module::kQ, .lora_rank = 4, .scale = 0.5f}}};
  return LoadedAdapter{Sha256Of(name), spec, name == "long" ? LongReceipt() : kReceipt, name,
                       R"({"base_model_name": "x/y", "harmless_fields": ["lora_dropout"]})"};
}

class AdaptersServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / "adapters_service_test";
    std::filesystem::remove_all(root_);
    for (const char* name : {"one", "two", "bad", "slow", "long"}) {
      std::filesystem::create_directories(root_ / "adapters" / name);
    }
    auto registry = Registry::Open({.data_dir = root_ / "data",
                                    .adapter_root = root_ / "adapters",
                                    .base_name = "base",
                                    .loader =
                                        [this](const std::filesystem::path& directory) {
                                          if (NameOf(directory) == "slow") gate_.Pass();
                                          return LoadFake(directory);
                                        },
                                    .unix_ms = [] { return int64_t{1000}; }});
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
    auto model = LoadModelSpec(ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama");
    ASSERT_TRUE(model.ok()) << model.status();
    service_ = std::make_unique<AdaptersService>(registry_.get(), &engine_, *model, &pool_,
                                                 &registrations_, &fetches_);
    aliases_ = std::make_unique<AliasesService>(registry_.get(), &pool_);
    auto server = RpcServer::Start("127.0.0.1:0", {service_->service(), aliases_->service()});
    ASSERT_TRUE(server.ok());
    server_ = *std::move(server);
    const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                             grpc::InsecureChannelCredentials());
    stub_ = v1::Adapters::NewStub(channel);
    alias_stub_ = v1::Aliases::NewStub(channel);
  }

  void TearDown() override { gate_.Open(); }

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

  grpc::Status List(const v1::ListAdaptersRequest& request, v1::ListAdaptersResponse* out) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return stub_->List(&context, request, out);
  }

  std::filesystem::path root_;
  Gate gate_;
  FakeEngine engine_;
  WorkPool pool_{2, 16};
  WorkPool registrations_{2, 1, "registrations"};
  WorkPool fetches_{1, 1, "registrations by URI"};
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<AdaptersService> service_;
  std::unique_ptr<AliasesService> aliases_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Adapters::Stub> stub_;
  std::unique_ptr<v1::Aliases::Stub> alias_stub_;
  std::unique_ptr<grpc::ClientContext> context_;
};

}  // namespace rootstock
