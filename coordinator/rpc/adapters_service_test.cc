#include "coordinator/rpc/adapters_service.h"

#include <vector>

#include "coordinator/rpc/adapters_service_fixture.h"
#include "gmock/gmock.h"
#include "rootstock/v1/types.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Which way it is held follows from the layout id that the group reported.
TEST_F(AdaptersServiceTest, ResidencySaysTheShardingAndTheBytesOfEachRank) {
  const ModelSpec model = *LoadModelSpec(ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama");
  const LoraSpec lora = LoadFake("one")->spec;
  constexpr uint32_t kPageBytes = 65536;
  for (const LoraSharding sharding : {LoraSharding::kReplicated, LoraSharding::kFullySharded}) {
    const AdapterLayout layout = *AdapterLayout::Create(model, lora, *MakeTpPlan(model, 2),
                                                        sharding, DType::kF32, kPageBytes);
    GroupStatus group;
    group.info = {.name = LoraShardingName(sharding), .tp_size = 2};
    group.geometry = {.num_pages = 10, .page_bytes = kPageBytes, .page_tokens = 16};
    group.adapters.push_back({Sha256Of("one"), layout.id(), {PageId(3)}});
    engine_.status.groups.push_back(group);
  }
  engine_.status.lora_sharding = LoraShardingPolicy::kFullySharded;
  v1::Adapter adapter;
  ASSERT_TRUE(Register("pirate", "one", &adapter).ok());
  ASSERT_EQ(adapter.residency_size(), 2);
  for (const v1::Residency& place : adapter.residency()) {
    EXPECT_EQ(place.sharding(), place.group());
    // q, lora_rank 4: A is 4 rows of 64 f32, or 2 of them; B 4 rows of 32 outputs.
    const bool fully = place.group() == "fully-sharded";
    const uint64_t bytes = (fully ? 2 : 4) * 64 * 4 + 4 * 32 * 4;
    EXPECT_THAT(place.tp_rank_bytes(), ElementsAre(bytes, bytes));
  }
  EXPECT_EQ(adapter.receipt().pages(0).sharding(), "fully-sharded");
}

TEST_F(AdaptersServiceTest, RegisterGetListUnregister) {
  GroupStatus group;
  group.info = {.name = "g0", .tp_size = 1};
  group.geometry = {.num_pages = 10, .page_bytes = 65536, .page_tokens = 16};
  group.adapters.push_back({.digest = Sha256Of("one"), .pages = {PageId(3), PageId(4)}});
  group.cached = {{Sha256Of("one"), Tier::kHost, 777},
                  {Sha256Of("two"), Tier::kDisk, 555},
                  {Sha256Of("one"), Tier::kDisk, 333}};
  engine_.status.groups.push_back(group);

  v1::Adapter adapter;
  const grpc::Status status = Register("pirate", "one", &adapter);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(adapter.name(), "pirate");
  EXPECT_EQ(adapter.tenant(), "default");
  EXPECT_EQ(adapter.digest(), Sha256Of("one").Hex());
  EXPECT_EQ(adapter.receipt().modules(0).module(), "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(adapter.receipt().modules(0).scale(), 0.5f);
  EXPECT_EQ(adapter.receipt().file_dtype(), "F32");
  EXPECT_EQ(adapter.receipt().base_model_name(), "x/y");
  EXPECT_THAT(adapter.receipt().harmless_fields(), ElementsAre("lora_dropout"));
  EXPECT_EQ(adapter.receipt().pages(0).group(), "g0");
  EXPECT_EQ(adapter.receipt().pages(0).pages(), 1u);
  EXPECT_EQ(adapter.residency(0).tier(), "device");
  EXPECT_EQ(adapter.residency(0).bytes(), 2u * 65536);
  ASSERT_EQ(adapter.residency_size(), 3);
  EXPECT_EQ(adapter.residency(1).tier(), "host");
  EXPECT_EQ(adapter.residency(1).bytes(), 777u);
  EXPECT_EQ(adapter.residency(2).tier(), "disk");
  EXPECT_EQ(adapter.residency(2).group(), "g0");

  ASSERT_TRUE(Register("other", "two", &adapter).ok());
  v1::ListAdaptersResponse list;
  ASSERT_TRUE(List({}, &list).ok());
  ASSERT_EQ(list.adapters_size(), 2);
  EXPECT_EQ(list.adapters(0).name(), "other");
  const v1::AdapterSummary& summary = list.adapters(1);
  EXPECT_EQ(summary.name(), "pirate");
  EXPECT_EQ(summary.tenant(), "default");
  EXPECT_EQ(summary.digest(), Sha256Of("one").Hex());
  EXPECT_EQ(summary.state(), "active");
  EXPECT_EQ(summary.modules(), 1u);
  EXPECT_THAT(summary.lora_ranks(), ElementsAre(4));
  EXPECT_EQ(summary.blob_bytes(), 3u);
  EXPECT_EQ(summary.pages(0).group(), "g0");
  EXPECT_EQ(summary.pages(0).pages(), 1u);
  EXPECT_EQ(summary.residency(0).pages(), 2u);
  EXPECT_EQ(summary.registered_unix_ms(), 1000);

  EXPECT_EQ(Unregister("pirate"), 3u);
  EXPECT_THAT(engine_.unloaded, ElementsAre(Sha256Of("one")));
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
  EXPECT_TRUE(engine_.unloaded.empty());
  EXPECT_EQ(Unregister("b"), 3u);
  EXPECT_EQ(engine_.unloaded.size(), 1u);
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
  const grpc::Status named = Register("Pirate King", "one", &adapter);
  EXPECT_EQ(named.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(named.error_message(),
            "name=Pirate King: must match [a-z0-9][a-z0-9._-]{0,62} (adapter names)");
  EXPECT_FALSE(Register("pirate", "../../etc", &adapter).ok());
  ASSERT_TRUE(Register("pirate", "one", &adapter).ok());  // nothing was left behind
  EXPECT_EQ(Register("pirate", "two", &adapter).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

// Registrations that read slowly hold up neither reads nor removals; what finds no room among them
// is told so.
TEST_F(AdaptersServiceTest, SlowRegistrationsBlockNoOtherCall) {
  v1::Adapter adapter;
  ASSERT_TRUE(Register("quick", "one", &adapter).ok());
  constexpr int kCalls = 4;  // two are read, one waits, one is refused
  grpc::CompletionQueue queue;
  std::vector<grpc::ClientContext> contexts(kCalls);
  std::vector<v1::RegisterResponse> responses(kCalls);
  std::vector<grpc::Status> statuses(kCalls);
  for (int i = 0; i < kCalls; ++i) {
    v1::RegisterRequest request;
    request.set_name(absl::StrCat("slow-", i));
    request.set_path("slow");
    contexts[i].set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    stub_->AsyncRegister(&contexts[i], request, &queue)
        ->Finish(&responses[i], &statuses[i], &statuses[i]);
    if (i < 2) gate_.WaitForReaders(i + 1);
  }
  void* refused = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&refused, &ok));
  const auto& status = *static_cast<grpc::Status*>(refused);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("too many registrations wait"));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetAdapterRequest get;
  get.set_name("quick");
  EXPECT_TRUE(stub_->Get(&context, get, &adapter).ok());
  v1::ListAdaptersResponse list;
  EXPECT_TRUE(List({}, &list).ok());
  EXPECT_EQ(list.adapters_size(), 1);
  EXPECT_EQ(Unregister("quick"), 3u);

  gate_.Open();
  for (int i = 1; i < kCalls; ++i) {
    void* done = nullptr;
    ASSERT_TRUE(queue.Next(&done, &ok));
    EXPECT_TRUE(static_cast<grpc::Status*>(done)->ok());
  }
}

// A store that stands still takes the threads of registrations by URI, and no others.
TEST_F(AdaptersServiceTest, RegistrationsByUriWaitApart) {
  const auto stand_still = [this] { gate_.Pass(); };
  ASSERT_TRUE(fetches_.Post(stand_still));
  gate_.WaitForReaders(1);
  ASSERT_TRUE(fetches_.Post(stand_still));
  v1::Adapter adapter;
  EXPECT_TRUE(Register("here", "one", &adapter).ok());
  const grpc::Status full = Register("there", "s3://tunes/there", &adapter);
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("too many registrations by URI wait"));
  gate_.Open();
}

}  // namespace
}  // namespace rootstock
