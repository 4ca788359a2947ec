#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/rpc/cluster_service.h"
#include "coordinator/rpc/fake_engine.h"
#include "coordinator/rpc/inference_service.h"
#include "coordinator/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/cluster.grpc.pb.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ErrorDetail DetailOf(const grpc::ClientContext& context) {
  v1::ErrorDetail detail;
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find("rootstock-error-detail-bin");
  EXPECT_NE(it, trailers.end());
  if (it != trailers.end()) detail.ParseFromArray(it->second.data(), it->second.size());
  return detail;
}

class RpcTest : public ::testing::Test {
 protected:
  RpcTest()
      : inference_(&engine_, &frontend_, &pool_,
                   {metrics_.MakeCounter("waited_seconds_total", "").At(),
                    [this] { return absl::FromUnixMicros(now_us_); }}),
        cluster_({.version = "1.2",
                  .served_model = "base",
                  .incarnation = 3,
                  .metrics_address = "127.0.0.1:9",
                  .num_adapters = [] { return size_t{5}; }},
                 &engine_, &pool_) {
    auto server = RpcServer::Start("127.0.0.1:0", {inference_.service(), cluster_.service()});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = absl::StrCat("127.0.0.1:", server_->port());
    channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  static v1::GenerateRequest Request(const std::string& model) {
    v1::GenerateRequest request;
    request.set_model(model);
    request.mutable_token_ids()->add_ids(4);
    return request;
  }
  // A unary call without a stub; the answer's bytes.
  std::string RawCall(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    grpc::Slice flat;
    if (!status.ok() || !response.DumpToSingleSlice(&flat).ok()) return status.error_message();
    return std::string(reinterpret_cast<const char*>(flat.begin()), flat.size());
  }

  Metrics metrics_;
  std::atomic<int64_t> now_us_ = 0;
  FakeEngine engine_;
  Frontend frontend_{"base", nullptr, 1};
  WorkPool pool_{2, 4};
  InferenceService inference_;
  ClusterService cluster_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(RpcTest, AnAnswerFromAcceptedToDone) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request("pirate");
  request.mutable_sampling()->set_seed(9);
  request.set_logprobs(1);
  const auto reader = stub_->Generate(&context, request);
  const auto call = engine_.WaitForCall(1);
  call.sink->OnPromptLogprobs({{.token = 5, .logprob = -1.5f, .rank = 2}});
  call.sink->OnDelta(
      {.token_ids = {8},
       .logprobs = {{.token = 8, .logprob = -0.5f, .rank = 1, .top = {{8, -0.5f}}}}});
  call.sink->OnDelta({.token_ids = {2}, .finish_reason = FinishReason::kStop, .stop_match = "2"});
  call.sink->OnDone(absl::OkStatus(), {.prompt_tokens = 2, .completion_tokens = 2});

  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.accepted().model(), "pirate");
  EXPECT_EQ(message.accepted().adapter_digest(), Sha256Of("pirate").Hex());
  EXPECT_EQ(message.accepted().seed(), 9u);
  EXPECT_THAT(message.accepted().request_id(), HasSubstr("req-"));
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.prompt_logprobs().tokens(0).logprob(), -1.5f);
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.delta().token_ids(0), 8);
  EXPECT_EQ(message.delta().logprobs(0).top(0).token_id(), 8);
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.delta().finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(message.delta().stop_match(), "2");
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.done().usage().completion_tokens(), 2);
  EXPECT_EQ(message.done().seed(), 9u);
  EXPECT_EQ(message.done().adapter_digest(), Sha256Of("pirate").Hex());
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(RpcTest, EveryFieldReachesTheEngine) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request("base");
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(0.5);
  sampling.set_top_k(-1);
  sampling.set_min_p(0.25);
  sampling.set_presence_penalty(-0.5);
  sampling.set_frequency_penalty(0.75);
  sampling.set_repetition_penalty(1.25);
  sampling.set_seed(77);
  (*sampling.mutable_logit_bias())[3] = 1.5f;
  request.set_max_tokens(-4);
  request.set_min_tokens(2);
  request.set_n(3);
  request.add_stop("x");
  request.add_stop_token_ids(6);
  request.set_ignore_eos(true);
  request.set_include_stop_in_output(true);
  request.set_parse_special(true);
  request.set_skip_special_tokens(false);
  request.set_prompt_logprobs(0);
  request.set_tenant("t");
  request.set_request_id("mine");
  request.set_add_special_tokens(false);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  const auto reader = stub_->Generate(&context, request);
  const GenerateRequest got = engine_.WaitForCall(1).request;
  EXPECT_EQ(got.sampling.temperature, 0.5f);
  EXPECT_FALSE(got.sampling.top_p.has_value());
  EXPECT_EQ(got.sampling.top_k, -1);
  EXPECT_EQ(got.sampling.min_p, 0.25f);
  EXPECT_EQ(got.sampling.presence_penalty, -0.5f);
  EXPECT_EQ(got.sampling.frequency_penalty, 0.75f);
  EXPECT_EQ(got.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(got.sampling.seed, 77u);
  EXPECT_THAT(got.sampling.logit_bias, ElementsAre(std::pair(3, 1.5f)));
  EXPECT_FALSE(got.text.has_value());
  EXPECT_THAT(*got.token_ids, ElementsAre(4));
  EXPECT_EQ(got.max_tokens, -4);
  EXPECT_EQ(got.min_tokens, 2);
  EXPECT_EQ(got.n, 3);
  EXPECT_THAT(got.stop, ElementsAre("x"));
  EXPECT_THAT(got.stop_token_ids, ElementsAre(6));
  EXPECT_TRUE(got.ignore_eos);
  EXPECT_TRUE(got.include_stop_in_output);
  EXPECT_TRUE(got.parse_special);
  EXPECT_FALSE(got.skip_special_tokens);
  EXPECT_FALSE(got.logprobs.has_value());
  EXPECT_EQ(got.prompt_logprobs, 0);
  EXPECT_EQ(got.tenant, "t");
  EXPECT_EQ(got.request_id, "mine");
  EXPECT_FALSE(got.add_special_tokens);
  EXPECT_LT(absl::AbsDuration(got.deadline - absl::Now() - absl::Hours(1)), absl::Minutes(1));
  context.TryCancel();
}

TEST_F(RpcTest, RefusalsCarryTheirDetail) {
  engine_.refusal = MakeError(absl::StatusCode::kNotFound, Reason::kUnknownModel, "model", "nope",
                              "no such model");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request("nope"));
  v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "model=nope: no such model");
  EXPECT_EQ(DetailOf(context).reason(), "unknown_model");
  EXPECT_EQ(DetailOf(context).field(), "model");
  EXPECT_EQ(DetailOf(context).value(), "nope");
  EXPECT_EQ(DetailOf(context).retry_after_ms(), 0);

  engine_.refusal =
      MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "queue", "4", "full");
  grpc::ClientContext second;
  reader = stub_->Generate(&second, Request("base"));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GT(DetailOf(second).retry_after_ms(), 0);
}

TEST_F(RpcTest, TheEnginesRetryHintTravels) {
  engine_.refusal = WithRetryAfter(
      MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "queue", "4", "full"),
      2500);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("base"));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(context).retry_after_ms(), 2500);
  EXPECT_EQ(DetailOf(context).reason(), "queue_full");
}

TEST_F(RpcTest, AMissingPromptIsRefusedBeforeTheEngine) {
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_model("base");
  const auto reader = stub_->Generate(&context, request);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(context).reason(), "empty_prompt");
}

TEST_F(RpcTest, AFailureComesAfterWhatWasSaid) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("base"));
  const auto call = engine_.WaitForCall(1);
  call.sink->OnDelta({.token_ids = {1}});
  call.sink->OnDone(
      MakeError(absl::StatusCode::kInternal, Reason::kWorkerLost, "group", "g0", "died twice"), {});
  v1::GenerateResponse message;
  int messages = 0;
  while (reader->Read(&message)) ++messages;
  EXPECT_EQ(messages, 2);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(DetailOf(context).reason(), "worker_lost");
}

TEST_F(RpcTest, CancelReachesTheEngine) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("base"));
  const auto call = engine_.WaitForCall(1);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(engine_.WaitForCancels(1), ElementsAre(1));
  call.sink->OnDelta({.token_ids = {1}});  // to nobody
  call.sink->OnDone(absl::CancelledError("cancelled"), {});
}

TEST_F(RpcTest, DisconnectReachesTheEngine) {
  auto context = std::make_unique<grpc::ClientContext>();
  auto reader = stub_->Generate(context.get(), Request("base"));
  engine_.WaitForCall(1);
  reader.reset();
  context.reset();  // ends the call as a lost client does
  EXPECT_THAT(engine_.WaitForCancels(1), ElementsAre(1));
}

TEST_F(RpcTest, ADeadlineEndsTheCall) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  const auto reader = stub_->Generate(&context, Request("base"));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(engine_.WaitForCancels(1), ElementsAre(1));
}

TEST_F(RpcTest, ASlowClientBlocksNobodyAndLosesNothing) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("base"));
  const auto call = engine_.WaitForCall(1);
  constexpr int kTokens = 20000;  // more than the connection's window holds
  for (int i = 0; i < kTokens; ++i) {
    call.sink->OnDelta({.text = std::string(20, 'x'), .token_ids = {i}});
  }
  now_us_ = 7'000'000;
  call.sink->OnDone(absl::OkStatus(), {.completion_tokens = kTokens});
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  for (int i = 0; i < kTokens; ++i) {
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_EQ(message.delta().token_ids(0), i);
  }
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.done().usage().completion_tokens(), kTokens);
  EXPECT_THAT(metrics_.Text(), HasSubstr("rootstock_waited_seconds_total 7\n"));
}

TEST_F(RpcTest, WithoutATokenizerTextIsRefused) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("hello");
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf(context).reason(), "no_tokenizer");
  grpc::ClientContext second;
  v1::DetokenizeResponse text;
  EXPECT_FALSE(stub_->Detokenize(&second, v1::DetokenizeRequest(), &text).ok());
}

TEST_F(RpcTest, StatusSaysWhatTheEngineSays) {
  GroupStatus group;
  group.info = {.name = "g0", .pool = "unified", .tp_size = 2};
  group.info.model_fingerprint = Sha256Of("weights");
  group.info.ranks.push_back({.host = "h", .device = "cpu", .build = "b", .metrics_port = 9500});
  group.state = "ready";
  group.epoch = {3, 4};
  group.geometry = {.num_pages = 100, .page_bytes = 4096, .page_tokens = 16};
  group.pages_free = 60;
  group.pages_kv = 30;
  group.pages_adapter = 9;
  group.adapters.push_back({.digest = Sha256Of("a")});
  group.widest_step = {.rows = 8, .tokens = 9, .distinct_adapters = 5, .duration_us = 7};
  engine_.status = {.queued = 1, .running = 2, .groups = {group}};
  grpc::ClientContext context;
  v1::StatusResponse out;
  const auto cluster = v1::Cluster::NewStub(channel_);
  ASSERT_TRUE(cluster->Status(&context, v1::StatusRequest(), &out).ok());
  EXPECT_EQ(out.served_model(), "base");
  EXPECT_EQ(out.incarnation(), 3u);
  EXPECT_EQ(out.model_fingerprint(), Sha256Of("weights").Hex());
  EXPECT_EQ(out.adapters(), 5u);
  EXPECT_EQ(out.running_requests(), 2u);
  ASSERT_EQ(out.groups_size(), 1);
  EXPECT_EQ(out.groups(0).state(), "ready");
  EXPECT_EQ(out.groups(0).epoch(), 4u);
  EXPECT_EQ(out.groups(0).pages_free() + out.groups(0).pages_kv() + out.groups(0).pages_adapter(),
            99u);
  EXPECT_EQ(out.groups(0).ranks(0).metrics_port(), 9500u);
  EXPECT_THAT(out.groups(0).resident_adapters(), ElementsAre(Sha256Of("a").Hex()));
  EXPECT_EQ(out.groups(0).widest_step().distinct_adapters(), 5u);

  grpc::ClientContext drain;
  v1::DrainGroupRequest request;
  request.set_group("none");
  v1::DrainGroupResponse response;
  EXPECT_EQ(cluster->DrainGroup(&drain, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcTest, HealthFollowsTheGroups) {
  const std::string check = "/grpc.health.v1.Health/Check";
  const auto named = [](const std::string& service) {
    return absl::StrCat("\n", std::string(1, static_cast<char>(service.size())), service);
  };
  const std::string serving("\x08\x01"), not_serving("\x08\x02");
  EXPECT_EQ(RawCall(check, ""), not_serving);
  EXPECT_EQ(RawCall(check, named("rootstock.v1.Inference")), not_serving);
  EXPECT_EQ(RawCall(check, named("rootstock.v1.Adapters")), serving);
  server_->SetServing(true);
  EXPECT_EQ(RawCall(check, ""), serving);
  EXPECT_EQ(RawCall(check, named("rootstock.v1.Inference")), serving);
  server_->SetServing(false);
  EXPECT_EQ(RawCall(check, ""), not_serving);
}

TEST_F(RpcTest, ReflectionListsTheServices) {
  // list_services: "*"
  const std::string answer =
      RawCall("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3A\x01*");
  EXPECT_THAT(answer, HasSubstr("rootstock.v1.Inference"));
  EXPECT_THAT(answer, HasSubstr("rootstock.v1.Cluster"));
  EXPECT_THAT(answer, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(RpcTest, ATakenPortIsNamed) {
  const auto second = RpcServer::Start(address_, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address_));
}

TEST(WorkPool, RefusesMoreThanItsQueueAndFinishesTheRest) {
  std::mutex gate;
  std::atomic<int> ran = 0;
  {
    std::unique_lock closed(gate);
    WorkPool pool(1, 2);
    const auto job = [&] {
      std::lock_guard lock(gate);
      ++ran;
    };
    int taken = 0;
    while (pool.Post(job) && taken < 10) ++taken;
    EXPECT_GE(taken, 2);
    EXPECT_LE(taken, 3);
    closed.unlock();
  }
  EXPECT_GE(ran, 2);
}

}  // namespace
}  // namespace rootstock
