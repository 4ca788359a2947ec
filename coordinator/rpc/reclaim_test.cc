#include "coordinator/rpc/reclaim.h"

#include <chrono>
#include <thread>

#include "coordinator/rpc/adapters_service_fixture.h"
#include "gmock/gmock.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReclaimTest : public AdaptersServiceTest {
 protected:
  void SetUp() override {
    AdaptersServiceTest::SetUp();
    ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
    ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
    engine_.unloaded_bytes = {.device = 100, .host = 20, .disk = 3};
  }

  grpc::Status Unload(uint32_t version, v1::UnloadResponse* out) {
    grpc::ClientContext context;
    v1::UnloadRequest request;
    request.set_name("a");
    request.set_version(version);
    return stub_->Unload(&context, request, out);
  }
  grpc::Status Remove(uint32_t version, v1::UnregisterResponse* out,
                      std::chrono::milliseconds within = std::chrono::seconds(20)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + within);
    v1::UnregisterRequest request;
    request.set_name("a");
    request.set_version(version);
    return stub_->Unregister(&context, request, out);
  }
  grpc::Status Pin(uint32_t version, bool pinned = true, const std::string& group = "") {
    grpc::ClientContext context;
    v1::PinRequest request;
    request.set_name("a");
    request.set_version(version);
    request.set_group(group);
    return pinned ? stub_->Pin(&context, request, &pinned_)
                  : stub_->Unpin(&context, request, &pinned_);
  }

  v1::PinResponse pinned_;
};

// FAULTS F1, F2: what is unloaded is free on every tier, and said so; the name stays.
TEST_F(ReclaimTest, F1UnloadFreesEveryTierAndSaysWhatThatGave) {
  v1::UnloadResponse freed;
  ASSERT_TRUE(Unload(1, &freed).ok());
  EXPECT_EQ(freed.device_bytes(), 100u);
  EXPECT_EQ(freed.host_bytes(), 20u);
  EXPECT_EQ(freed.disk_bytes(), 3u);
  EXPECT_THAT(engine_.unloaded, ElementsAre(Sha256Of("one")));
  EXPECT_TRUE(registry_->Resolve("a@1", "default", "r").ok());
  ASSERT_TRUE(Unload(0, &freed).ok());
  EXPECT_EQ(freed.device_bytes(), 200u);
  EXPECT_EQ(engine_.unloaded.size(), 3u);
  EXPECT_EQ(Unload(3, &freed).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ReclaimTest, UnregisterSaysWhatLeftGroupsAndStore) {
  ASSERT_TRUE(registry_->Register("b", "two", "default").ok());
  v1::UnregisterResponse freed;
  ASSERT_TRUE(Remove(0, &freed).ok());
  // "two" has another name.
  EXPECT_THAT(engine_.unloaded, ElementsAre(Sha256Of("one")));
  EXPECT_EQ(freed.freed_bytes(), 3u);
  EXPECT_EQ(freed.device_bytes(), 100u);
  EXPECT_EQ(freed.host_bytes(), 20u);
  EXPECT_EQ(freed.disk_bytes(), 3u);
}

// The end of the name does not wait for what runs; the answer does.
TEST_F(ReclaimTest, UnregisterIsDurableAtOnceAndAnswersWhenAllIsFree) {
  engine_.hold_unloads = true;
  AdapterHandle running = registry_->Resolve("a@1", "default", "r")->content;
  v1::UnregisterResponse freed;
  grpc::Status status;
  std::thread caller([&] { status = Remove(1, &freed); });
  const auto groups_are_done = engine_.WaitForUnload();
  EXPECT_FALSE(registry_->Resolve("a@1", "default", "r").ok());
  groups_are_done(engine_.unloaded_bytes);
  EXPECT_TRUE(std::filesystem::exists(root_ / "data/blobs" / running->digest.Hex()));
  running.reset();
  caller.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(freed.freed_bytes(), 3u);
  EXPECT_EQ(freed.device_bytes(), 100u);
}

TEST_F(ReclaimTest, AClientThatDoesNotWaitChangesNothing) {
  engine_.hold_unloads = true;
  v1::UnregisterResponse freed;
  EXPECT_EQ(Remove(1, &freed, std::chrono::milliseconds(200)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(registry_->Resolve("a@1", "default", "r").ok());
  engine_.WaitForUnload()(engine_.unloaded_bytes);  // nobody hears it
  // Sent again it succeeds, and finds nothing to free.
  EXPECT_TRUE(Remove(1, &freed).ok());
  EXPECT_EQ(freed.freed_bytes() + freed.device_bytes(), 0u);
  EXPECT_EQ(Remove(3, &freed).error_code(), grpc::StatusCode::NOT_FOUND);
}

// Requests of the new name don't keep it from its answer, whatever it still waits for.
TEST_F(ReclaimTest, UnregisterAnswersWhenItsContentIsRegisteredAgain) {
  for (const bool groups_first : {false, true}) {
    engine_.hold_unloads = true;
    const AdapterHandle running = registry_->FindDigest(Sha256Of("one"));
    v1::UnregisterResponse freed;
    grpc::Status status;
    std::thread caller([&] { status = Remove(0, &freed); });
    const auto one = engine_.WaitForUnload(), two = engine_.WaitForUnload();
    two(engine_.unloaded_bytes);
    if (groups_first) one(engine_.unloaded_bytes);
    ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
    caller.join();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(freed.freed_bytes(), 3u);  // of "two"
    EXPECT_EQ(freed.device_bytes(), groups_first ? 200u : 100u);
    if (!groups_first) one(engine_.unloaded_bytes);  // nobody waits for it
    ASSERT_TRUE(registry_->Register("a", "two", "default", true).ok());
  }
}

TEST_F(ReclaimTest, PinsAreCheckedToldAndHoldAgainstUnload) {
  engine_.pins_refusal = MakeError(absl::StatusCode::kFailedPrecondition, Reason::kTooLarge, "pins",
                                   "9", "pages, the pool has 8");
  EXPECT_THAT(Pin(1).error_message(), HasSubstr("the pool has 8"));
  EXPECT_TRUE(registry_->Pins().empty());
  engine_.pins_refusal = absl::OkStatus();
  ASSERT_TRUE(Pin(1).ok());
  ASSERT_EQ(engine_.pins.size(), 1u);
  EXPECT_EQ(engine_.pins[0].digest, Sha256Of("one"));
  v1::UnloadResponse freed;
  EXPECT_EQ(Unload(0, &freed).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Unload(2, &freed).ok());
  ASSERT_TRUE(Pin(1, false).ok());
  EXPECT_TRUE(engine_.pins.empty());
  ASSERT_TRUE(Pin(1).ok());
  v1::UnregisterResponse gone;
  ASSERT_TRUE(Remove(1, &gone).ok());
  EXPECT_TRUE(engine_.pins.empty());
}

TEST_F(ReclaimTest, APinThatDoesLessThanItSaysIsTold) {
  engine_.status.groups.emplace_back().info.name = "g0";
  ASSERT_TRUE(Pin(1, true, "g0").ok());
  EXPECT_EQ(pinned_.notice(), "");
  ASSERT_TRUE(Pin(1, true, "g9").ok());
  EXPECT_THAT(pinned_.pins(), ElementsAre("g0", "g9"));
  EXPECT_EQ(pinned_.notice(), "no group 'g9' is known; the pin counts from when one attaches");
  ASSERT_TRUE(Pin(2).ok());
  EXPECT_EQ(pinned_.notice(), "");
  ASSERT_TRUE(Pin(2, true, "g0").ok());
  EXPECT_THAT(pinned_.pins(), ElementsAre("*"));
  EXPECT_EQ(pinned_.notice(), "it is pinned on all groups");
}

// What another name has pinned stays where it is.
TEST_F(ReclaimTest, UnloadLeavesContentThatAnotherTenantPinned) {
  ASSERT_TRUE(registry_->Register("theirs", "one", "other").ok());
  ASSERT_TRUE(registry_->Pin("theirs", "other", 0, "").ok());
  v1::UnloadResponse freed;
  ASSERT_TRUE(Unload(1, &freed).ok());
  EXPECT_EQ(freed.device_bytes(), 0u);
  EXPECT_TRUE(engine_.unloaded.empty());
}

}  // namespace
}  // namespace rootstock
