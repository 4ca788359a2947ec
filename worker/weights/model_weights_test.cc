#include "worker/weights/model_weights.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <tuple>

#include "common/base/half.h"
#include "common/base/status.h"
#include "worker/device/cpu_device.h"
#include "worker/weights/weights_rig.h"

namespace rootstock {
namespace {

ModelSpec Spec(bool tied) {
  ModelSpec spec;
  spec.architecture = Architecture::kQwen2;
  spec.num_layers = 2;
  spec.hidden_size = 24;
  spec.ffn_size = 40;  // 5 units of 8
  spec.num_heads = 6;
  spec.num_kv_heads = 3;
  spec.head_dim = 4;
  spec.vocab_size = 44;
  spec.tie_word_embeddings = tied;
  spec.qkv_bias = true;
  return spec;
}

float At(const Matrix& m, int row, int col) {
  return LoadFloat(static_cast<const uint8_t*>(m.data), m.dtype,
                   static_cast<size_t>(row) * m.cols + col);
}

// Rows [first, …) of `m` are `rows` × `cols` of the tensor.
void ExpectSlice(const Matrix& m, int first, const std::string& name, int full_cols, Range rows,
                 Range cols) {
  SCOPED_TRACE(name);
  ASSERT_EQ(m.cols, cols.size());
  ASSERT_LE(first + rows.size(), m.rows);
  for (int r = 0; r < rows.size(); ++r) {
    for (int c = 0; c < cols.size(); ++c) {
      const size_t at = static_cast<size_t>(rows.begin + r) * full_cols + cols.begin + c;
      ASSERT_EQ(At(m, first + r, c), Value(name, at));
    }
  }
}

void ExpectLayer(const ModelSpec& spec, const TpPlan& tp, int rank, int layer,
                 const LayerWeights& w) {
  const auto slice = [&](Module m) { return tp.sharded_features(rank, m); };
  const Range hidden{0, spec.hidden_size};
  int row = 0;
  for (const Module m : {Module::kQ, Module::kK, Module::kV}) {
    ExpectSlice(w.qkv, row, ModulePath(layer, m) + ".weight", hidden.end, slice(m), hidden);
    for (int i = 0; i < slice(m).size(); ++i) {
      EXPECT_EQ(w.qkv_bias[row + i], Value(ModulePath(layer, m) + ".bias", slice(m).begin + i));
    }
    row += slice(m).size();
  }
  EXPECT_EQ(w.qkv.rows, row);
  const int ffn = slice(Module::kGate).size();
  ExpectSlice(w.gate_up, 0, ModulePath(layer, Module::kGate) + ".weight", hidden.end,
              slice(Module::kGate), hidden);
  ExpectSlice(w.gate_up, ffn, ModulePath(layer, Module::kUp) + ".weight", hidden.end,
              slice(Module::kUp), hidden);
  ExpectSlice(w.o, 0, ModulePath(layer, Module::kO) + ".weight", spec.in_features(Module::kO),
              hidden, slice(Module::kO));
  ExpectSlice(w.down, 0, ModulePath(layer, Module::kDown) + ".weight", spec.ffn_size, hidden,
              slice(Module::kDown));
}

class ModelWeightsTest : public testing::TestWithParam<std::tuple<DType, DType, bool>> {};

TEST_P(ModelWeightsTest, EachRankHoldsItsRangesAndReadsNoMore) {
  const auto [file_dtype, dtype, tied] = GetParam();
  const ModelSpec spec = Spec(tied);
  ModelDir dir("weights");
  dir.AddModel(spec, file_dtype);
  dir.Write();
  CpuDevice device(1);
  for (const int tp_size : {1, 2, 3}) {
    const TpPlan tp = *MakeTpPlan(spec, tp_size);
    std::optional<Digest> fingerprint;
    for (int rank = 0; rank < tp_size; ++rank) {
      uint64_t last = 0, total = 0;
      LoadOptions options;
      options.dtype = dtype;
      options.progress = [&](uint64_t done, uint64_t all) {
        EXPECT_GT(done, last);
        last = done;
        total = all;
      };
      const auto weights = ModelWeights::Load(dir.path(), spec, tp, rank, device, options);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const Range vocab = tp.shards[rank].vocab;
      ExpectSlice((*weights)->embedding(), 0, "model.embed_tokens.weight", spec.hidden_size, vocab,
                  {0, spec.hidden_size});
      EXPECT_EQ((*weights)->head().data == (*weights)->embedding().data, tied);
      if (!tied) {
        ExpectSlice((*weights)->head(), 0, "lm_head.weight", spec.hidden_size, vocab,
                    {0, spec.hidden_size});
      }
      for (int layer = 0; layer < spec.num_layers; ++layer) {
        ExpectLayer(spec, tp, rank, layer, (*weights)->layers()[layer]);
      }
      EXPECT_EQ((*weights)->bytes_read(), total);
      EXPECT_EQ(last, total);
      EXPECT_LE(total, ShareBytes(**weights, spec, DTypeBytes(file_dtype)) * 1.1);
      if (fingerprint) {
        EXPECT_EQ((*weights)->fingerprint(), *fingerprint);
      }
      fingerprint = (*weights)->fingerprint();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ModelWeightsTest,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Bool()));

std::string Bytes(const Matrix& m) {
  return {static_cast<const char*>(m.data), size_t{1} * m.rows * m.cols * DTypeBytes(m.dtype)};
}

TEST(PeersTest, RanksThatMeetHoldWhatARankAloneHolds) {
  const ModelSpec spec = Spec(false);
  ModelDir dir("peers");
  dir.AddModel(spec, DType::kF16);
  dir.Write();
  for (const int tp_size : {1, 2, 3}) {
    const TpPlan tp = *MakeTpPlan(spec, tp_size);
    CpuDevice device(1);
    const auto loaded = LoadTogether(tp_size, [&](int rank, const LoadPeers& peers) {
      LoadOptions options;
      options.peers = peers;
      return ModelWeights::Load(dir.path(), spec, tp, rank, device, options);
    });
    for (int rank = 0; rank < tp_size; ++rank) {
      ASSERT_TRUE(loaded[rank].ok()) << loaded[rank].status();
      const auto alone = *ModelWeights::Load(dir.path(), spec, tp, rank, device, {});
      const ModelWeights& weights = **loaded[rank];
      EXPECT_EQ(weights.bytes_read(), alone->bytes_read());
      EXPECT_EQ(Bytes(weights.embedding()), Bytes(alone->embedding()));
      EXPECT_EQ(Bytes(weights.head()), Bytes(alone->head()));
      for (int layer = 0; layer < spec.num_layers; ++layer) {
        const LayerWeights &a = weights.layers()[layer], &b = alone->layers()[layer];
        EXPECT_EQ(Bytes(a.qkv), Bytes(b.qkv));
        EXPECT_EQ(Bytes(a.o), Bytes(b.o));
        EXPECT_EQ(Bytes(a.gate_up), Bytes(b.gate_up));
        EXPECT_EQ(Bytes(a.down), Bytes(b.down));
      }
    }
  }
}

// Fails at its n-th allocation, or at its n-th write. *One thread.*
class FailingDevice : public CpuDevice {
 public:
  FailingDevice(int allocations, int writes)
      : CpuDevice(1), allocations_(allocations), writes_(writes) {}
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& purpose) override {
    if (allocations_-- == 0) return absl::ResourceExhaustedError("no memory");
    return CpuDevice::Allocate(bytes, purpose);
  }
  absl::Status WriteBack() override {
    return writes_-- == 0 ? absl::DataLossError("no write") : absl::OkStatus();
  }

 private:
  int allocations_, writes_;
};

// A rank that waited for ever would keep the test from its end.
TEST(PeersTest, ARankThatFailsEndsTheLoadsOfAll) {
  const ModelSpec spec = Spec(false);
  ModelDir dir("failing");
  dir.AddModel(spec, DType::kF32);
  dir.Write();
  const TpPlan tp = *MakeTpPlan(spec, 3);
  // While it plans, while it reads before the meeting, and behind it: there the others go on.
  for (const auto& [allocations, writes, others] :
       {std::tuple(3, 1000, false), std::tuple(1000, 2, false), std::tuple(1000, 9, true)}) {
    const auto loaded = LoadTogether(3, [&](int rank, const LoadPeers& peers) -> LoadedWeights {
      FailingDevice broken(allocations, writes);
      CpuDevice sound(1);
      LoadOptions options;
      options.peers = peers;
      Device& device = rank == 1 ? broken : sound;
      RETURN_IF_ERROR(ModelWeights::Load(dir.path(), spec, tp, rank, device, options).status());
      return nullptr;
    });
    EXPECT_FALSE(loaded[1].ok());
    for (const int rank : {0, 2}) {
      EXPECT_EQ(loaded[rank].ok(), others);
      if (!others) {
        EXPECT_EQ(loaded[rank].status(), loaded[1].status());
      }
    }
  }
}

absl::Status LoadStatus(const ModelDir& dir, const ModelSpec& spec) {
  CpuDevice device(1);
  return ModelWeights::Load(dir.path(), spec, *MakeTpPlan(spec, 2), 1, device, {}).status();
}

void ExpectRefusal(const absl::Status& status, const std::vector<std::string>& mentions) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kModelInvalid) << status;
  for (const std::string& text : mentions) {
    EXPECT_NE(status.message().find(text), std::string::npos) << status;
  }
}

TEST(ModelWeightsRefusalTest, MissingMisshapenAndStrayTensorsByName) {
  const ModelSpec spec = Spec(false);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  ModelDir missing("missing");
  missing.AddModel(spec, DType::kF32);
  missing.Remove(name);
  missing.Write();
  ExpectRefusal(LoadStatus(missing, spec), {name, "missing"});

  ModelDir shape("shape");
  shape.AddModel(spec, DType::kF32);
  shape.Remove(name);
  shape.Add(name, {spec.hidden_size, spec.ffn_size}, DType::kF32);
  shape.Write();
  ExpectRefusal(LoadStatus(shape, spec), {name, "[24, 40]", "[40, 24]"});

  ModelDir stray("stray");
  stray.AddModel(spec, DType::kF32);
  stray.Add("model.layers.2.mlp.up_proj.weight", {40, 24}, DType::kF32);
  stray.Write();
  ExpectRefusal(LoadStatus(stray, spec), {"model.layers.2.mlp.up_proj.weight"});
}

TEST(ModelWeightsRefusalTest, NoFilesAtAll) {
  ModelDir empty("empty");
  EXPECT_FALSE(LoadStatus(empty, Spec(true)).ok());
}

TEST(FingerprintTest, FollowsConfigAndTheEndsOfTensors) {
  const ModelSpec spec = Spec(true);
  CpuDevice device(1);
  const auto fingerprint = [&](const ModelDir& dir) {
    return (*ModelWeights::Load(dir.path(), spec, *MakeTpPlan(spec, 1), 0, device, {}))
        ->fingerprint();
  };
  ModelDir a("a"), b("b");
  a.AddModel(spec, DType::kF32);
  b.AddModel(spec, DType::kF32);
  a.Write();
  b.Write();
  const Digest first = fingerprint(a);
  EXPECT_EQ(first, fingerprint(b));
  std::ofstream(b.path() / "config.json") << "{ }";
  EXPECT_NE(first, fingerprint(b));
  // The last byte of the file belongs to the last tensor.
  std::fstream file(a.path() / "model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7f');
  file.close();
  EXPECT_NE(first, fingerprint(a));
}

TEST(DummyWeightsTest, SameModelAtEveryTpSizeAndType) {
  const ModelSpec spec = Spec(false);
  CpuDevice device(1);
  LoadOptions f32, bf16;
  f32.dtype = DType::kF32;
  const TpPlan one = *MakeTpPlan(spec, 1), three = *MakeTpPlan(spec, 3);
  const auto whole = *ModelWeights::Dummy(spec, one, 0, device, 7, f32);
  int row = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = *ModelWeights::Dummy(spec, three, rank, device, 7, bf16);
    EXPECT_EQ(part->fingerprint(), whole->fingerprint());
    const Matrix& m = part->layers()[1].down;
    for (int r = 0; r < m.rows; ++r) {
      for (int c = 0; c < m.cols; ++c) {
        ASSERT_EQ(At(m, r, c), At(whole->layers()[1].down, r, three.shards[rank].ffn.begin + c));
      }
    }
    for (int r = 0; r < part->head().rows; ++r, ++row) {
      ASSERT_EQ(At(part->head(), r, 5), At(whole->head(), row, 5));
    }
    EXPECT_EQ(part->final_norm()[3], 1.0f);
  }
  const auto other = *ModelWeights::Dummy(spec, one, 0, device, 8, f32);
  EXPECT_NE(other->fingerprint(), whole->fingerprint());
  EXPECT_NE(At(other->head(), 0, 0), At(whole->head(), 0, 0));
}

}  // namespace
}  // namespace rootstock
