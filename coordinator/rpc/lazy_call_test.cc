// Requests for adapters that a store may hold.
#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "coordinator/adapters/lazy_adapters.h"
#include "coordinator/content/adapter_sources.h"
#include "coordinator/rpc/fake_engine.h"
#include "coordinator/rpc/inference_service.h"
#include "coordinator/rpc/server.h"
#include "gtest/gtest.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// A store with one adapter, "dora", which is refused.
class LazyCallTest : public ::testing::Test {
 protected:
  LazyCallTest() {
    fs::remove_all(root_);
    fs::create_directories(root_ / "store/dora");
    std::ofstream(root_ / "store/dora/adapter_config.json") << "{}";
    std::ofstream(root_ / "store/dora/adapter_model.safetensors") << "x";
    const StoreUri store = *ParseStoreUri("file://" + (root_ / "store").string());
    sources_ = *AdapterSources::Open(root_ / "scratch", {.own = {store}});
    registry_ =
        *Registry::Open({.data_dir = root_ / "data",
                         .sources = sources_.get(),
                         .base_name = "base",
                         .loader = [this](const fs::path&) -> absl::StatusOr<LoadedAdapter> {
                           ++loads_;
                           return InvalidField(Reason::kDora, "use_dora", "true", "not served");
                         }});
    lazy_ = std::make_unique<LazyAdapters>(
        registry_.get(), store, [] { return absl::UnixEpoch(); },
        [this](const std::function<void()>& job) {
          ++jobs_;
          if (hold_) {
            held_ = job;
          } else {
            job();
          }
          return true;
        });
    inference_ = std::make_unique<InferenceService>(
        &engine_, &frontend_, &pool_,
        StreamMetrics{metrics_.MakeCounter("waited_seconds_total", "").At(),
                      [] { return absl::UnixEpoch(); }},
        lazy_.get());
    server_ = *RpcServer::Start("127.0.0.1:0", {inference_->service()});
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                       grpc::InsecureChannelCredentials()));
  }

  grpc::Status Ask(v1::ErrorDetail* detail) {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.set_model("dora");
    request.mutable_token_ids()->add_ids(4);
    const grpc::Status status = stub_->Generate(&context, request)->Finish();
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto it = trailers.find("rootstock-error-detail-bin");
    if (it != trailers.end()) detail->ParseFromArray(it->second.data(), it->second.size());
    return status;
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / "lazy_call_test";
  Metrics metrics_;
  FakeEngine engine_;
  Frontend frontend_{"base", nullptr, 1};
  WorkPool pool_{1, 16};
  std::unique_ptr<AdapterSources> sources_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<LazyAdapters> lazy_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::atomic<int> jobs_ = 0, loads_ = 0;
  bool hold_ = false;
  std::function<void()> held_;  // a fetch that takes long
};

TEST_F(LazyCallTest, WhatTheEngineRefusesAnywayIsNotFetched) {
  engine_.precheck = MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "coordinator", "",
                               "it is draining");
  v1::ErrorDetail detail;
  EXPECT_EQ(Ask(&detail).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(detail.reason(), "draining");
  EXPECT_EQ(jobs_, 0);
  EXPECT_EQ(engine_.WaitForRefused(1).size(), 1u);
}

TEST_F(LazyCallTest, ARefusedAdapterIsTheClientsErrorAndFetchedOnce) {
  for (int i = 0; i < 3; ++i) {
    v1::ErrorDetail detail;
    EXPECT_EQ(Ask(&detail).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(detail.reason(), "dora");
    EXPECT_EQ(detail.retry_after_ms(), 0);
  }
  EXPECT_EQ(loads_, 1);
  EXPECT_TRUE(engine_.calls().empty());
}

// They count as waiting from the first moment, and leave nothing when they are cancelled.
TEST_F(LazyCallTest, ThoseWhoWaitForAStoreStandInTheQueue) {
  hold_ = true;
  v1::GenerateRequest request;
  request.set_model("dora");
  request.mutable_token_ids()->add_ids(4);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> calls;
  for (uint32_t i = 1; i <= 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.push_back(stub_->Generate(contexts.back().get(), request));
    while (engine_.queue->waiting() < i) std::this_thread::yield();
  }
  v1::ErrorDetail detail;  // two of eight: no third for one name
  EXPECT_EQ(Ask(&detail).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(detail.reason(), "queue_full");
  contexts[0]->TryCancel();
  EXPECT_EQ(calls[0]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (engine_.queue->waiting() > 1) std::this_thread::yield();
  EXPECT_EQ(jobs_, 1);
  held_();
  EXPECT_EQ(calls[1]->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  while (engine_.queue->waiting() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace rootstock
