#include "common/wire/plan_wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "common/base/status.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

Digest DigestOf(int n) { return Sha256Of(std::to_string(n)); }

Command FullStep() {
  NewSequence s;
  s.slot = SequenceSlot(300);
  s.num_prompt_tokens = 5;
  s.num_tokens = 9;
  s.sampling = {0.5f, 0.9f, 40, 0.1f,       -2.0f, 2.0f, 1.25f, {{7, -100.0f}, {0, 3.5f}},
                5,    0,    12, {2, 128000}};
  s.seed = std::numeric_limits<uint64_t>::max();
  s.sample_index = 3;
  s.spans = {{0, 4, {}}, {4, 0, {{DigestOf(1), 1.0f}, {DigestOf(2), 0.25f}}}};
  s.cached_tokens = {1, 2, 3};
  PlanRow chunk{SequenceSlot(300),
                3,
                0,
                {11, 12, 13},
                {PageId(4), PageId(4294967295u)},
                RowOutput::kTokenAndPromptLogprobs};
  PlanRow decode{SequenceSlot(0), 1, 100000, {}, {}, RowOutput::kToken};
  PlanRow one{SequenceSlot(1), 1, 0, {5}, {PageId(9)}, RowOutput::kNone};
  return {CommandId(17), Epoch{5, 6}, StepPlan{{s}, {chunk, decode, one}}};
}

Command RoundTrip(const Command& in) {
  v1::Command wire;
  ToProto(in, &wire);
  v1::Command parsed;
  EXPECT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
  auto out = FromProto(parsed);
  EXPECT_TRUE(out.ok()) << out.status();
  v1::Command again;
  ToProto(*out, &again);
  EXPECT_EQ(wire.SerializeAsString(), again.SerializeAsString());
  return *out;
}

TEST(PlanWire, StepRoundTrip) {
  const Command out = RoundTrip(FullStep());
  EXPECT_EQ(out.id.value, 17u);
  EXPECT_EQ(out.epoch, (Epoch{5, 6}));
  const auto& step = std::get<StepPlan>(out.kind);
  ASSERT_EQ(step.new_sequences.size(), 1u);
  const NewSequence& s = step.new_sequences[0];
  EXPECT_EQ(s.slot.value, 300u);
  EXPECT_EQ(s.num_prompt_tokens, 5u);
  EXPECT_EQ(s.num_tokens, 9u);
  EXPECT_EQ(s.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(s.sample_index, 3u);
  EXPECT_EQ(s.spans, std::get<StepPlan>(FullStep().kind).new_sequences[0].spans);
  EXPECT_EQ(s.cached_tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(s.sampling.temperature, 0.5f);
  EXPECT_EQ(s.sampling.top_p, 0.9f);
  EXPECT_EQ(s.sampling.top_k, 40);
  EXPECT_EQ(s.sampling.min_p, 0.1f);
  EXPECT_EQ(s.sampling.presence_penalty, -2.0f);
  EXPECT_EQ(s.sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(s.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(s.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {0, 3.5f}}));
  EXPECT_EQ(s.sampling.logprobs, 5);
  EXPECT_EQ(s.sampling.prompt_logprobs, 0);
  EXPECT_EQ(s.sampling.min_tokens, 12u);
  EXPECT_EQ(s.sampling.banned_until_min, (std::vector<int32_t>{2, 128000}));
  ASSERT_EQ(step.rows.size(), 3u);
  EXPECT_EQ(step.rows[0].query_len, 3u);
  EXPECT_EQ(step.rows[0].tokens, (std::vector<int32_t>{11, 12, 13}));
  EXPECT_EQ(step.rows[0].pages[1].value, 4294967295u);
  EXPECT_EQ(step.rows[0].output, RowOutput::kTokenAndPromptLogprobs);
  EXPECT_EQ(step.rows[1].query_len, 1u);
  EXPECT_EQ(step.rows[1].position, 100000u);
  EXPECT_TRUE(step.rows[1].tokens.empty());
  EXPECT_EQ(step.rows[2].output, RowOutput::kNone);
  EXPECT_FALSE(step.eager);
}

TEST(PlanWire, OtherCommandsRoundTrip) {
  EXPECT_TRUE(std::get<StepPlan>(RoundTrip({CommandId(1), {}, StepPlan{}}).kind).rows.empty());
  const auto load = std::get<LoadAdapter>(
      RoundTrip({CommandId(2),
                 {1, 2},
                 LoadAdapter{DigestOf(1), 99, LoraSharding::kFullySharded, {PageId(3), PageId(1)}}})
          .kind);
  EXPECT_EQ(load.digest, DigestOf(1));
  EXPECT_EQ(load.layout_id, 99u);
  EXPECT_EQ(load.sharding, LoraSharding::kFullySharded);
  EXPECT_EQ(load.pages, (std::vector<PageId>{PageId(3), PageId(1)}));
  const auto release = std::get<ReleaseSlots>(
      RoundTrip({CommandId(3), {1, 2}, ReleaseSlots{{SequenceSlot(0), SequenceSlot(8)}}}).kind);
  EXPECT_EQ(release.slots, (std::vector<SequenceSlot>{SequenceSlot(0), SequenceSlot(8)}));
}

TEST(PlanWire, CompletionRoundTrip) {
  RowResult row{SequenceSlot(4),
                {9, 10},
                {{9, -0.5f, 1, {{9, -0.5f}, {3, -2.0f}}}},
                {{1, -7.0f, 40, {}}},
                true};
  const Completion in{
      CommandId(8), absl::OkStatus(), {{row, {SequenceSlot(5), {}, {}, {}, false}}, 1234, 2}};
  v1::Completion wire;
  ToProto(in, &wire);
  const auto out = FromProto(wire);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->id.value, 8u);
  EXPECT_TRUE(out->outcome.ok());
  EXPECT_EQ(out->step.duration_us, 1234u);
  EXPECT_EQ(out->step.distinct_adapters, 2u);
  ASSERT_EQ(out->step.rows.size(), 2u);
  const RowResult& r = out->step.rows[0];
  EXPECT_EQ(r.slot.value, 4u);
  EXPECT_EQ(r.tokens, (std::vector<int32_t>{9, 10}));
  EXPECT_TRUE(r.nonfinite);
  EXPECT_FALSE(out->step.rows[1].nonfinite);
  ASSERT_EQ(r.logprobs.size(), 1u);
  EXPECT_EQ(r.logprobs[0].rank, 1);
  EXPECT_EQ(r.logprobs[0].top, (std::vector<std::pair<int32_t, float>>{{9, -0.5f}, {3, -2.0f}}));
  ASSERT_EQ(r.prompt_logprobs.size(), 1u);
  EXPECT_EQ(r.prompt_logprobs[0].logprob, -7.0f);
}

TEST(PlanWire, OutcomeKeepsCodeMessageAndDetail) {
  const absl::Status in = Annotate(MakeError(absl::StatusCode::kNotFound, Reason::kDigestMismatch,
                                             "digest", "ab", "other bytes"),
                                   "tp_rank 1");
  v1::Outcome wire;
  ToProto(in, &wire);
  const absl::Status out = StatusFromProto(wire);
  EXPECT_EQ(out, in);
  ASSERT_TRUE(GetErrorDetail(out).has_value());
  EXPECT_EQ(GetErrorDetail(out)->reason, Reason::kDigestMismatch);
  EXPECT_EQ(GetErrorDetail(out)->value, "ab");
  ToProto(absl::UnavailableError("gone"), &wire);
  EXPECT_EQ(StatusFromProto(wire), absl::UnavailableError("gone"));
}

TEST(PlanWire, AttachRoundTrip) {
  GroupInfo info{"g0", "unified",   "b1",
                 2,    DigestOf(3), {{"h", "cpu", "b1", 10, 9500}, {"i", "GPU-1", "b1", 11, 9501}}};
  v1::Hello hello;
  ToProto(info, &hello);
  const auto back = FromProto(hello);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->name, "g0");
  EXPECT_EQ(back->pool, "unified");
  EXPECT_EQ(back->build, "b1");
  EXPECT_EQ(back->tp_size, 2u);
  EXPECT_EQ(back->model_fingerprint, DigestOf(3));
  ASSERT_EQ(back->ranks.size(), 2u);
  EXPECT_EQ(back->ranks[1].device, "GPU-1");
  EXPECT_EQ(back->ranks[1].pid, 11u);
  EXPECT_EQ(back->ranks[1].metrics_port, 9501u);

  v1::AttachOrder wire_order;
  ToProto(AttachOrder{{3, 4}, {2048, 16, 512, 7}}, &wire_order);
  const auto order = FromProto(wire_order);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order->epoch, (Epoch{3, 4}));
  EXPECT_EQ(order->limits.max_model_len, 2048u);
  EXPECT_EQ(order->limits.max_num_seqs, 16u);
  EXPECT_EQ(order->limits.max_num_batched_tokens, 512u);
  EXPECT_EQ(order->limits.max_logprobs, 7u);

  v1::AttachReport wire_report;
  ToProto(AttachReport{{3, 4}, {100, 8192, 16}, DType::kBF16, {{DigestOf(9), 5, {PageId(7)}}}},
          &wire_report);
  const auto report = FromProto(wire_report);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->epoch, (Epoch{3, 4}));
  EXPECT_EQ(report->geometry, (PageGeometry{100, 8192, 16}));
  EXPECT_EQ(report->compute_dtype, DType::kBF16);
  ASSERT_EQ(report->adapters.size(), 1u);
  EXPECT_EQ(report->adapters[0].digest, DigestOf(9));
  EXPECT_EQ(report->adapters[0].layout_id, 5u);
  EXPECT_EQ(report->adapters[0].pages, std::vector<PageId>{PageId(7)});
}

void ExpectRefused(const std::function<void(v1::Command*)>& spoil, const std::string& field) {
  v1::Command wire;
  ToProto(FullStep(), &wire);
  spoil(&wire);
  const auto out = FromProto(wire);
  ASSERT_FALSE(out.ok()) << field;
  EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(GetErrorDetail(out.status()).has_value());
  EXPECT_EQ(GetErrorDetail(out.status())->field, field);
}

TEST(PlanWire, BadCommandsNameTheField) {
  const std::string row = "command.step.rows[0]";
  const std::string sequence = "command.step.new_sequences[0]";
  ExpectRefused([](auto* c) { c->clear_epoch(); }, "command.epoch");
  ExpectRefused([](auto* c) { c->clear_step(); }, "command.kind");
  ExpectRefused([](auto* c) { c->mutable_step()->set_weight_set("x"); }, "command.step.weight_set");
  ExpectRefused([](auto* c) { c->mutable_step()->mutable_rows(0)->add_tokens(1); },
                row + ".tokens");
  ExpectRefused([](auto* c) { c->mutable_step()->mutable_rows(0)->clear_tokens(); },
                row + ".tokens");
  ExpectRefused([](auto* c) { c->mutable_step()->mutable_rows(0)->set_output(4); },
                row + ".output");
  ExpectRefused([](auto* c) { c->mutable_step()->mutable_new_sequences(0)->clear_sampling(); },
                sequence + ".sampling");
  ExpectRefused(
      [](auto* c) { c->mutable_step()->mutable_new_sequences(0)->set_num_prompt_tokens(10); },
      sequence + ".num_prompt_tokens");
  ExpectRefused(
      [](auto* c) { c->mutable_step()->mutable_new_sequences(0)->set_num_prompt_tokens(0); },
      sequence + ".num_prompt_tokens");
  ExpectRefused([](auto* c) { c->mutable_step()->mutable_new_sequences(0)->set_constraint("g"); },
                sequence + ".constraint");
  ExpectRefused(
      [](auto* c) {
        c->mutable_step()->mutable_new_sequences(0)->mutable_sampling()->add_bias_tokens(1);
      },
      sequence + ".sampling.bias_values");
  ExpectRefused(
      [](auto* c) {
        auto* span = c->mutable_step()->mutable_new_sequences(0)->mutable_spans(1);
        span->mutable_adapters(1)->set_digest("short");
      },
      sequence + ".spans[1].adapters[1].digest");
  ExpectRefused(
      [](auto* c) { c->mutable_step()->mutable_new_sequences(0)->mutable_spans(1)->set_end(4); },
      sequence + ".spans[1].end");
  ExpectRefused([](auto* c) { c->mutable_load()->set_digest(""); }, "command.load.digest");
  ExpectRefused(
      [](auto* c) {
        c->mutable_load()->set_digest(DigestToBytes(DigestOf(1)));
        c->mutable_load()->set_sharding(2);
      },
      "command.load.sharding");
}

TEST(PlanWire, BadReportsNameTheField) {
  v1::AttachReport good;
  ToProto(AttachReport{{1, 1}, {10, 128, 16}, DType::kF32, {}}, &good);
  const auto refused = [&good](auto spoil, const std::string& field) {
    v1::AttachReport bad = good;
    spoil(&bad);
    const auto out = FromProto(bad);
    ASSERT_FALSE(out.ok()) << field;
    EXPECT_EQ(GetErrorDetail(out.status())->field, field);
  };
  ASSERT_TRUE(FromProto(good).ok());
  refused([](auto* r) { r->clear_epoch(); }, "report.epoch");
  refused([](auto* r) { r->set_num_pages(1); }, "report.num_pages");
  refused([](auto* r) { r->set_page_bytes(100); }, "report.page_bytes");
  refused([](auto* r) { r->set_page_tokens(0); }, "report.page_tokens");
  refused([](auto* r) { r->set_compute_dtype(3); }, "report.compute_dtype");
  refused([](auto* r) { r->add_adapters()->set_digest("x"); }, "report.adapters[0].digest");
  v1::Hello hello;
  hello.set_group("g");
  hello.set_tp_size(2);
  EXPECT_EQ(GetErrorDetail(FromProto(hello).status())->field, "hello.ranks");
  EXPECT_EQ(GetErrorDetail(FromProto(v1::Completion()).status())->field, "completion.outcome");
  EXPECT_EQ(GetErrorDetail(FromProto(v1::AttachOrder()).status())->field, "attach.epoch");
}

// PROTOCOL §2: the contract on a plan's size.
TEST(PlanWire, TwoHundredFiftySixDecodeRowsFitEightKilobytes) {
  std::mt19937 random(1);
  StepPlan plan;
  for (uint32_t i = 0; i < 256; ++i) {
    PlanRow row{SequenceSlot(i + 45), 1, 90000 + static_cast<uint32_t>(random() % 10000), {}, {},
                RowOutput::kToken};
    if (i % 16 == 0) row.pages = {PageId(1000000 + i)};
    plan.rows.push_back(row);
  }
  v1::Command wire;
  ToProto({CommandId(123456789), {1700000000, 12}, plan}, &wire);
  EXPECT_LE(wire.SerializeAsString().size(), 8192u);
  RoundTrip({CommandId(123456789), {1700000000, 12}, plan});
}

}  // namespace
}  // namespace rootstock
