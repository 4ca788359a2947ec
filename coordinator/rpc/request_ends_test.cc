// Calls that end before the engine has heard of them: each is counted once.
#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/fake_engine.h"
#include "coordinator/rpc/inference_service.h"
#include "coordinator/rpc/server.h"
#include "gtest/gtest.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>;

// The pool's one thread is busy until Open, and one request has room to wait.
class RequestEndsTest : public ::testing::Test {
 protected:
  RequestEndsTest() {
    auto server = RpcServer::Start("127.0.0.1:0", {inference_.service()});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                       grpc::InsecureChannelCredentials()));
    std::promise<void> begun;
    EXPECT_TRUE(pool_->Post([&begun, until = open_.get_future().share()] {
      begun.set_value();
      until.wait();
    }));
    begun.get_future().wait();
  }
  ~RequestEndsTest() override { Open(); }
  // Everything that waited has been looked at when it returns.
  void Open() {
    if (pool_ == nullptr) return;
    open_.set_value();
    server_->Shutdown(absl::InfiniteFuture());
    pool_.reset();
  }
  Reader Ask(grpc::ClientContext& context) {
    v1::GenerateRequest request;
    request.set_model("base");
    request.mutable_token_ids()->add_ids(4);
    return stub_->Generate(&context, request);
  }
  static Reason ReasonOf(const absl::Status& status) { return GetErrorDetail(status)->reason; }

  // Until the server has one that waits.
  void AwaitWaiting() {
    while (pool_->waiting() == 0) std::this_thread::yield();
  }

  Metrics metrics_;
  FakeEngine engine_;
  Frontend frontend_{"base", nullptr, 1};
  std::unique_ptr<WorkPool> pool_ = std::make_unique<WorkPool>(1, 1);
  std::promise<void> open_;
  InferenceService inference_{
      &engine_,
      &frontend_,
      pool_.get(),
      {metrics_.MakeCounter("waited_seconds_total", "").At(), [] { return absl::UnixEpoch(); }}};
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(RequestEndsTest, ATooBusyServersRefusalIsCountedAndOneThatLeavesMeanwhileToo) {
  grpc::ClientContext waits, refused;
  const Reader waiting = Ask(waits);
  AwaitWaiting();
  EXPECT_EQ(Ask(refused)->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  waits.TryCancel();
  EXPECT_EQ(waiting->Finish().error_code(), grpc::StatusCode::CANCELLED);
  engine_.WaitForRefused(2);
  Open();
  const auto ends = engine_.WaitForRefused(2);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ReasonOf(ends[0]), Reason::kQueueFull);
  EXPECT_EQ(ReasonOf(ends[1]), Reason::kCancelled);
  EXPECT_TRUE(engine_.calls().empty());
}

TEST_F(RequestEndsTest, ADeadlineThatPassesWhileItWaitsIsOne) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(Ask(context)->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  engine_.WaitForRefused(1);
  Open();
  const auto ends = engine_.WaitForRefused(1);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(engine_.calls().empty());
}

TEST_F(RequestEndsTest, ABadRequestIsCountedAndOneThatGoesToTheEngineIsNot) {
  grpc::ClientContext bad, good;
  v1::GenerateRequest request;
  request.set_model("base");
  EXPECT_EQ(stub_->Generate(&bad, request)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  engine_.refusal = absl::NotFoundError("no such model");
  const Reader reader = Ask(good);
  open_.set_value();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  server_->Shutdown(absl::InfiniteFuture());
  pool_.reset();
  const auto ends = engine_.WaitForRefused(1);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ReasonOf(ends[0]), Reason::kEmptyPrompt);
}

}  // namespace
}  // namespace rootstock
