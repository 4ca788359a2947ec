#include "worker/model/model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "common/base/status.h"
#include "worker/device/cpu_device.h"
#include "worker/ops/cpu_ops.h"
#include "worker/parallel/thread_communicator.h"

namespace rootstock {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.num_layers = 2;
  spec.hidden_size = 32;
  spec.ffn_size = 48;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.vocab_size = 80;
  spec.max_position = 64;
  return spec;
}

class ModelTest : public testing::Test {
 protected:
  ModelTest() : tp_(*MakeTpPlan(spec_, 1)), communicator_(ThreadCommunicator::Self()) {
    GeometryRequest request;
    request.num_pages = 6;
    request.page_tokens = 4;
    const PageGeometry geometry = *MakeGeometry(spec_, tp_, DType::kF32, request);
    slab_ = *Slab::Create(device_, geometry);
    weights_ = *ModelWeights::Dummy(spec_, tp_, 0, device_, 1, {});
    ops_ = std::make_unique<CpuOps>(
        1, PagedMemory{slab_->data(), geometry.page_bytes, geometry.page_tokens});
    const ModelParts parts{weights_.get(), &device_, ops_.get(), slab_.get(), communicator_.get()};
    model_ = *Model::Create(
        spec_, tp_, 0, parts,
        {.max_tokens = 8, .max_rows = 2, .max_outputs = 2, .max_positions = 64, .num_slots = 2});
  }

  // Five tokens of one sequence on pages 3 and 1.
  ForwardBatch Batch() const {
    ForwardBatch batch;
    batch.token_ids = {5, 6, 7, 8, 9};
    batch.positions = {0, 1, 2, 3, 4};
    batch.rows = {{0, 5, 0, pages_}};
    batch.logit_tokens = {4};
    return batch;
  }

  void ExpectRefused(const ForwardBatch& batch, const std::string& field) {
    const absl::Status status = model_->Forward(batch).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(GetErrorDetail(status)->field, field) << status;
  }

  const ModelSpec spec_ = Spec();
  const TpPlan tp_;
  const std::vector<uint32_t> pages_ = {3, 1};
  CpuDevice device_{1};
  std::unique_ptr<ThreadCommunicator> communicator_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuOps> ops_;
  std::unique_ptr<Model> model_;
};

TEST_F(ModelTest, LogitsOfTheTokensAskedForInTheirOrder) {
  ForwardBatch batch = Batch();
  batch.logit_tokens = {4, 1};
  const float* both = *model_->Forward(batch);
  ASSERT_NE(both, nullptr);
  const std::vector<float> last(both, both + spec_.vocab_size);
  for (const float x : last) EXPECT_TRUE(std::isfinite(x));
  batch.logit_tokens = {4};
  const float* one = *model_->Forward(batch);
  EXPECT_EQ(std::vector<float>(one, one + spec_.vocab_size), last);
}

TEST_F(ModelTest, NoTokensAndNoOutputsGiveNoLogits) {
  EXPECT_EQ(*model_->Forward({}), nullptr);
  ForwardBatch batch = Batch();
  batch.logit_tokens.clear();
  EXPECT_EQ(*model_->Forward(batch), nullptr);
}

TEST_F(ModelTest, ContradictingBatchesAreRefusedByField) {
  ForwardBatch batch = Batch();
  batch.token_ids[2] = 80;
  ExpectRefused(batch, "token_id");
  batch = Batch();
  batch.token_ids[2] = LastTokenOf(2);
  ExpectRefused(batch, "token_id");
  batch = Batch();
  batch.positions[3] = 7;
  ExpectRefused(batch, "position");
  batch = Batch();
  batch.rows[0].page_table = batch.rows[0].page_table.first(1);
  ExpectRefused(batch, "page_table");
  batch = Batch();
  const std::vector<uint32_t> beyond = {3, 6};
  batch.rows[0].page_table = beyond;
  ExpectRefused(batch, "page");
  batch = Batch();
  batch.rows[0].num_tokens = 4;
  ExpectRefused(batch, "rows");
  batch = Batch();
  batch.logit_tokens = {5};
  ExpectRefused(batch, "logit_token");
  batch.logit_tokens = {0, 1, 2};
  ExpectRefused(batch, "logit_tokens");
  batch = Batch();
  batch.segments = {{0, 5, nullptr, 1.0f}};
  ExpectRefused(batch, "segment");
  batch = Batch();
  batch.token_ids.resize(9);
  batch.positions.resize(9);
  ExpectRefused(batch, "tokens");
}

TEST_F(ModelTest, PositionsBeyondTheModelAreRefused) {
  ForwardBatch batch = Batch();
  batch.rows[0].start_position = 60;
  for (int i = 0; i < 5; ++i) batch.positions[i] = 60 + i;
  ExpectRefused(batch, "position");
}

// Records late, or not at all, on tp_rank 1.
class UnevenOps : public CpuOps {
 public:
  UnevenOps(const PagedMemory& memory, int rank, const absl::Status& outcome,
            std::atomic<int>* recorded, std::atomic<int>* at_warm_up)
      : CpuOps(1, memory),
        rank_(rank),
        outcome_(outcome),
        recorded_(*recorded),
        at_warm_up_(*at_warm_up) {}
  absl::Status Record(const std::function<absl::Status()>&) override {
    if (rank_ == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++recorded_;
    return rank_ == 1 ? outcome_ : absl::OkStatus();
  }
  absl::Status WarmUp(const std::function<absl::Status()>&) override {
    at_warm_up_ += recorded_;
    return absl::OkStatus();
  }

 private:
  const int rank_;
  const absl::Status outcome_;
  std::atomic<int>&recorded_, &at_warm_up_;
};

absl::Status CreateOnRank(Communicator& communicator, const absl::Status& outcome,
                          std::atomic<int>* recorded, std::atomic<int>* at_warm_up) {
  const ModelSpec spec = Spec();
  const TpPlan tp = *MakeTpPlan(spec, communicator.size());
  const int rank = communicator.rank();
  CpuDevice device{1};
  GeometryRequest request;
  request.num_pages = 6;
  request.page_tokens = 4;
  const PageGeometry geometry = *MakeGeometry(spec, tp, DType::kF32, request);
  const auto slab = *Slab::Create(device, geometry);
  const auto weights = *ModelWeights::Dummy(spec, tp, rank, device, 1, {});
  UnevenOps ops({slab->data(), geometry.page_bytes, geometry.page_tokens}, rank, outcome, recorded,
                at_warm_up);
  return Model::Create(spec, tp, rank, {weights.get(), &device, &ops, slab.get(), &communicator},
                       {.max_tokens = 8,
                        .max_rows = 2,
                        .max_outputs = 2,
                        .max_positions = 64,
                        .num_slots = 2})
      .status();
}

// A collective of the warm-up waits for the last rank only so long.
TEST(ModelOfRanks, NoRankWarmsUpBeforeAllHaveRecorded) {
  std::atomic<int> recorded = 0, at_warm_up = 0;
  const absl::Status status = RunOnRanks(2, [&](Communicator& communicator) {
    return CreateOnRank(communicator, absl::OkStatus(), &recorded, &at_warm_up);
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(at_warm_up, 4);
}

TEST(ModelOfRanks, ARankThatCantRecordIsEveryRanksError) {
  std::atomic<int> recorded = 0, at_warm_up = 0, failed = 0;
  const absl::Status status = RunOnRanks(2, [&](Communicator& communicator) {
    const absl::Status mine =
        CreateOnRank(communicator, absl::InternalError("no graph"), &recorded, &at_warm_up);
    failed += mine.message().find("no graph") != std::string_view::npos ? 1 : 0;
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(failed, 2);
  EXPECT_EQ(at_warm_up, 0);
}

}  // namespace
}  // namespace rootstock
