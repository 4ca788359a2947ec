#include "common/wire/tier_wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {
namespace {

Digest ContentOf(int n) { return Sha256Of("content " + std::to_string(n)); }

// Through the bytes, and back to the same bytes.
template <typename Kind>
Kind Sent(Kind in) {
  v1::Command wire, parsed, again;
  ToProto(Command{CommandId(4), {1, 2}, std::move(in)}, &wire);
  EXPECT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
  const auto out = FromProto(parsed);
  EXPECT_TRUE(out.ok()) << out.status();
  ToProto(*out, &again);
  EXPECT_EQ(wire.SerializeAsString(), again.SerializeAsString());
  return std::get<Kind>(out->kind);
}

TEST(TierWire, PrefetchRoundTrip) {
  const PrefetchAdapter full = Sent(PrefetchAdapter{
      ContentOf(4), uint64_t{1} << 60, LoraSharding::kFullySharded, true, uint64_t{1} << 40});
  EXPECT_EQ(full.digest, ContentOf(4));
  EXPECT_EQ(full.layout_id, uint64_t{1} << 60);
  EXPECT_EQ(full.sharding, LoraSharding::kFullySharded);
  EXPECT_TRUE(full.to_host);
  EXPECT_EQ(full.bytes, uint64_t{1} << 40);
  const PrefetchAdapter plain = Sent(PrefetchAdapter{ContentOf(5)});
  EXPECT_EQ(plain.sharding, LoraSharding::kReplicated);
  EXPECT_FALSE(plain.to_host);
}

TEST(TierWire, DropAndPinRoundTrip) {
  for (const Tiers tiers : {Tiers(Tier::kDevice), Tier::kHost | Tier::kDisk, kAllTiers}) {
    const DropAdapter drop = Sent(DropAdapter{ContentOf(5), tiers});
    EXPECT_EQ(drop.digest, ContentOf(5));
    EXPECT_EQ(drop.tiers, tiers);
  }
  for (const bool pinned : {true, false}) {
    const PinAdapter pin = Sent(PinAdapter{ContentOf(6), Tier::kHost, pinned});
    EXPECT_EQ(pin.digest, ContentOf(6));
    EXPECT_EQ(pin.tiers, Tiers(Tier::kHost));
    EXPECT_EQ(pin.pinned, pinned);
  }
}

TEST(TierWire, EagerRoundTrip) {
  StepPlan plan;
  plan.eager = true;
  EXPECT_TRUE(Sent(plan).eager);
  EXPECT_FALSE(Sent(StepPlan{}).eager);
}

TEST(TierWire, CompletionRoundTrip) {
  Completion in{CommandId(8), absl::OkStatus(), {}};
  in.source = FetchSource::kObject;
  in.bytes = 123456789012;
  in.freed = {1, 2, uint64_t{1} << 40};
  in.tier_changes = {{{ContentOf(1), Tier::kHost, 77}, true},
                     {{ContentOf(2), Tier::kDisk, 0}, false}};
  v1::Completion wire, parsed;
  ToProto(in, &wire);
  ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
  const auto out = FromProto(parsed);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->source, FetchSource::kObject);
  EXPECT_EQ(out->bytes, in.bytes);
  EXPECT_EQ(out->freed, in.freed);
  EXPECT_EQ(out->tier_changes, in.tier_changes);
  ToProto(Completion{CommandId(9), absl::OkStatus(), {}}, &wire);
  const auto empty = FromProto(wire);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->source, FetchSource::kNone);
  EXPECT_EQ(empty->freed, TierBytes());
  EXPECT_TRUE(empty->tier_changes.empty());
}

TEST(TierWire, AttachReportRoundTrip) {
  AttachReport in{{3, 4}, {100, 8192, 16}, DType::kBF16, {}};
  in.loads_by_layer = true;
  in.cached = {{ContentOf(1), Tier::kHost, 5}, {ContentOf(1), Tier::kDisk, 6}};
  v1::AttachReport wire;
  ToProto(in, &wire);
  const auto out = FromProto(wire);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_TRUE(out->loads_by_layer);
  EXPECT_EQ(out->cached, in.cached);
}

TEST(TierWire, BadMessagesNameTheField) {
  const std::string digest = DigestToBytes(ContentOf(1));
  const auto refused = [&](const std::function<void(v1::Command*)>& spoil,
                           const std::string& field) {
    v1::Command wire;
    ToProto(Command{CommandId(1), {1, 1}, StepPlan{}}, &wire);
    spoil(&wire);
    const auto out = FromProto(wire);
    ASSERT_FALSE(out.ok()) << field;
    EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(out.status())->field, field);
  };
  refused([](auto* c) { c->mutable_prefetch()->set_digest("1"); }, "command.prefetch.digest");
  refused(
      [&](auto* c) {
        c->mutable_prefetch()->set_digest(digest);
        c->mutable_prefetch()->set_sharding(2);
      },
      "command.prefetch.sharding");
  refused([](auto* c) { c->mutable_drop(); }, "command.drop.digest");
  for (const uint32_t tiers : {0u, 8u, 257u}) {
    refused(
        [&](auto* c) {
          c->mutable_drop()->set_digest(digest);
          c->mutable_drop()->set_tiers(tiers);
        },
        "command.drop.tiers");
  }
  refused([](auto* c) { c->mutable_pin(); }, "command.pin.digest");
  refused(
      [&](auto* c) {
        c->mutable_pin()->set_digest(digest);
        c->mutable_pin()->set_tiers(3);  // a device page is pinned by the coordinator
      },
      "command.pin.tiers");
  v1::Completion completion;
  completion.mutable_outcome();
  completion.set_source(5);
  EXPECT_EQ(GetErrorDetail(FromProto(completion).status())->field, "completion.source");
  completion.set_source(1);
  completion.add_tier_changes()->mutable_adapter()->set_digest(digest);
  EXPECT_EQ(GetErrorDetail(FromProto(completion).status())->field,
            "completion.tier_changes[0].adapter.tier");
  v1::AttachReport report;
  ToProto(AttachReport{{1, 1}, {10, 128, 16}, DType::kF32, {}}, &report);
  report.add_cached()->set_digest("x");
  EXPECT_EQ(GetErrorDetail(FromProto(report).status())->field, "report.cached[0].digest");
}

}  // namespace
}  // namespace rootstock
