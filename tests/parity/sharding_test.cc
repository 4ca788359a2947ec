// DESIGN §6: replicated, fully sharded and both in one batch give the logits of one rank, with
// shapes that no tp_size divides; what they exchange is counted. Names D1 … D7 are kinds of faults
// that servers had with adapters over several ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/parity/test_group.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr int kLayers = 2;

struct Shape {
  const char* name;
  int heads, kv_heads;
  std::vector<int> tp_sizes;
};
// Hidden 72 and ffn 136 are 9 and 17 units of 8, the vocabulary is odd.
const Shape kGrouped = {"grouped", 8, 2, {1, 2, 4, 8}};  // KV heads are replicated at 4 and 8
const Shape kUneven = {"uneven", 9, 3, {1, 2, 3}};       // 6 + 3 query heads at 2

std::vector<uint8_t> Numbers(size_t count, std::mt19937& random, float size) {
  std::vector<uint8_t> out(4 * count);
  std::uniform_real_distribution<float> value(-size, size);
  for (size_t i = 0; i < count; ++i) {
    const float x = value(random);
    std::memcpy(&out[4 * i], &x, 4);
  }
  return out;
}

// Module m of layer l has lora_rank rank(l, m); 0: left alone.
std::string Adapter(const ModelSpec& model, uint32_t seed, auto rank) {
  std::mt19937 random(seed);
  LoraSpec spec;
  std::vector<LoraWeights> weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Module m : kAllModules) {
      const int r = rank(layer, m);
      if (r == 0) continue;
      spec.modules.push_back({layer, m, r, 0.7f + 0.1f * static_cast<float>(seed % 5)});
      const size_t in = model.in_features(m), out = model.out_features(m);
      weights.push_back({DType::kF32, DType::kF32, Numbers(in * r, random, 0.2f),
                         Numbers(out * r, random, 0.2f)});
    }
  }
  return EncodeCanonical(spec, weights, model);
}

class ShardingTest : public testing::Test {
 protected:
  ~ShardingTest() override { fs::remove_all(root_); }

  std::unique_ptr<TestGroup> Group(const Shape& shape, int tp_size) {
    const fs::path dir = root_ / shape.name;
    fs::create_directories(dir);
    std::ofstream(dir / "config.json") << absl::StrCat(
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": 72, "intermediate_size": 136, "vocab_size": 331, "head_dim": 16,
            "num_hidden_layers": )",
        kLayers, R"(, "num_attention_heads": )", shape.heads, R"(, "num_key_value_heads": )",
        shape.kv_heads,
        R"(, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": false})");
    GroupOptions options;
    options.tp_size = tp_size;
    options.dummy_weights = true;
    auto group = TestGroup::Create(dir, options);
    EXPECT_TRUE(group.ok()) << group.status();
    return *std::move(group);
  }

  // a0 … a6: lora_ranks below, at and above every tp_size, mixed within an adapter, modules and
  // layers left alone.
  static std::vector<std::string> Adapters(const ModelSpec& model) {
    const auto all = [](int r) { return [r](int, Module) { return r; }; };
    return {Adapter(model, 1, all(1)),
            Adapter(model, 2, all(3)),
            Adapter(model, 3, all(16)),
            Adapter(model, 4, [](int l, Module m) { return 2 + 3 * l + 2 * static_cast<int>(m); }),
            Adapter(model, 5, [](int l, Module m) { return l == 0 && m == Module::kK ? 5 : 0; }),
            Adapter(model, 6, [](int, Module m) { return IsRowParallel(m) ? 9 : 0; }),
            Adapter(model, 7, [](int l, Module m) { return l == 1 && m == Module::kV ? 2 : 0; })};
  }
  static std::string Name(size_t i) { return absl::StrCat("a", i); }

  static TestRequest Request(std::vector<std::string> adapters, int length, int max_tokens) {
    TestRequest out;
    for (int i = 0; i < length; ++i) out.prompt.push_back((i * 41 + length * 17 + 3) % 331);
    out.adapters = std::move(adapters);
    out.max_tokens = max_tokens;
    return out;
  }

  // Every adapter, the base, and stacked ones: of one mode and of both.
  static std::vector<TestRequest> Requests() {
    std::vector<TestRequest> out = {Request({}, 9, 4), Request({"a0", "a1"}, 6, 4),
                                    Request({"a2", "a0"}, 5, 4), Request({"a3", "a5", "a6"}, 4, 4)};
    for (size_t i = 0; i < 7; ++i)
      out.push_back(Request({Name(i)}, static_cast<int>(3 + 2 * i), 4));
    for (size_t i = 0; i < out.size(); ++i) out[i].arrival = static_cast<int>(i * 3 % 4);
    return out;
  }

  static std::vector<TestRequest> Run(TestGroup& group, std::vector<TestRequest> requests,
                                      int chunk = 5) {
    const absl::Status run = group.Run(requests, chunk);
    EXPECT_TRUE(run.ok()) << run;
    return requests;
  }

  static void ExpectSame(const std::vector<TestRequest>& a, const std::vector<TestRequest>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].tokens, b[i].tokens) << i;
      for (size_t j = 0; j < b[i].logits.size(); ++j) {
        for (size_t v = 0; v < b[i].logits[j].size(); ++v) {
          ASSERT_NEAR(a[i].logits[j][v], b[i].logits[j][v], 1e-4f) << i << " " << j << " " << v;
        }
      }
    }
  }

  struct Count {
    uint64_t reduces, reduced, gathers, gathered;
    friend bool operator==(const Count&, const Count&) = default;
    Count operator-(const Count& o) const {
      return {reduces - o.reduces, reduced - o.reduced, gathers - o.gathers, gathered - o.gathered};
    }
  };
  static Count Counted(const TestGroup& group, int tp_rank) {
    const CollectiveCounters& reduce = group.collectives(tp_rank).of(CollectiveOp::kAllReduce);
    const CollectiveCounters& gather = group.collectives(tp_rank).of(CollectiveOp::kAllGather);
    return {reduce.calls, reduce.bytes, gather.calls, gather.bytes};
  }
  // Of one step with these rows, beyond one with rows of the base.
  static Count Added(TestGroup& group, const std::vector<TestRequest>& requests) {
    std::vector<TestRequest> base = requests;
    for (TestRequest& r : base) r.adapters.clear();
    const Count start = Counted(group, 0);
    Run(group, base, 64);
    const Count middle = Counted(group, 0);
    Run(group, requests, 64);
    return Counted(group, 0) - middle - (middle - start);
  }

  const fs::path root_ = fs::path(testing::TempDir()) / absl::StrCat("sharding.", getpid());
};

// D1: right on one rank, wrong on several; D3: a lora_rank below tp_size or not a multiple;
// D5: k and v where the base's layer is the same on several ranks.
TEST_F(ShardingTest, D1D3D5BothModesAndTheirMixtureGiveTheLogitsOfOneRank) {
  for (const Shape& shape : {kGrouped, kUneven}) {
    std::vector<TestRequest> want;
    for (const int tp_size : shape.tp_sizes) {
      SCOPED_TRACE(absl::StrCat(shape.name, " over ", tp_size));
      const std::unique_ptr<TestGroup> group = Group(shape, tp_size);
      const std::vector<std::string> adapters = Adapters(group->spec());
      for (const ShardingMix mix : ShardingMixes(tp_size)) {
        SCOPED_TRACE(static_cast<int>(mix));
        for (size_t i = 0; i < adapters.size(); ++i) {
          ASSERT_TRUE(group->Load(Name(i), adapters[i], ShardingOf(mix, i)).ok());
        }
        const std::vector<TestRequest> got = Run(*group, Requests());
        if (want.empty()) want = got;
        ExpectSame(got, want);
        for (size_t i = 0; i < adapters.size(); ++i) ASSERT_TRUE(group->Evict(Name(i)).ok());
      }
    }
    // Every adapter matters: else sameness would show nothing.
    for (size_t i = 4; i < want.size(); ++i) {
      TestRequest base = want[i];
      base.adapters.clear();
      double most = 0;
      const auto alone = Run(*Group(shape, 1), {base})[0];
      for (size_t v = 0; v < 331; ++v) {
        most = std::max<double>(most, std::abs(alone.logits[0][v] - want[i].logits[0][v]));
      }
      EXPECT_GT(most, 1e-2) << want[i].adapters[0];
    }
  }
}

// D2: what a load writes depends on the adapter alone, however often it came and went, and in
// which mode it was before.
TEST_F(ShardingTest, D2ReloadsInEitherModeGiveTheSameBits) {
  const std::unique_ptr<TestGroup> group = Group(kGrouped, 4);
  const std::vector<std::string> adapters = Adapters(group->spec());
  std::vector<TestRequest> first[2];
  for (int time = 0; time < 6; ++time) {
    const auto sharding = static_cast<LoraSharding>(time % 2);
    ASSERT_TRUE(group->Load("a3", adapters[3], sharding).ok());
    std::vector<TestRequest> got = Run(*group, {Request({"a3"}, 11, 5)});
    std::vector<TestRequest>& want = first[time % 2];
    if (want.empty()) want = got;
    EXPECT_EQ(got[0].logits, want[0].logits) << time;
    ASSERT_TRUE(group->Evict("a3").ok());
  }
  ExpectSame(first[0], first[1]);
}

// D7: ranks that hold no component of an adapter leave what the others exchange alone.
TEST_F(ShardingTest, D7ARankWithoutComponentsTouchesNoOtherAdapter) {
  const std::unique_ptr<TestGroup> group = Group(kGrouped, 8);
  const std::vector<std::string> adapters = Adapters(group->spec());
  for (const size_t i : {0, 2, 6}) {
    ASSERT_TRUE(group->Load(Name(i), adapters[i], LoraSharding::kFullySharded).ok());
  }
  const TestRequest wide = Request({"a2"}, 7, 3);
  const std::vector<TestRequest> alone = Run(*group, {wide}, 64);
  for (const char* narrow : {"a0", "a6"}) {
    const auto together = Run(*group, {Request({narrow}, 5, 3), wide, Request({narrow}, 3, 3)}, 64);
    EXPECT_EQ(together[1].logits, alone[0].logits) << narrow;
  }
}

TEST_F(ShardingTest, ReplicatedAdaptersAddNoCollectiveAndShardedOnesOneAGroupOfModules) {
  for (const int tp_size : {2, 4, 8}) {
    SCOPED_TRACE(tp_size);
    const std::unique_ptr<TestGroup> group = Group(kGrouped, tp_size);
    const std::vector<std::string> adapters = Adapters(group->spec());
    const auto load = [&](size_t i, LoraSharding sharding) {
      ASSERT_TRUE(group->Load(Name(i), adapters[i], sharding).ok());
    };
    for (size_t i = 0; i < 4; ++i) load(i, LoraSharding::kReplicated);
    EXPECT_EQ(Added(*group, {Request({"a0"}, 5, 1), Request({"a2"}, 7, 1), Request({}, 3, 1)}),
              Count{});
    ASSERT_TRUE(group->Evict("a2").ok());
    load(2, LoraSharding::kFullySharded);
    for (size_t i = 4; i < 7; ++i) load(i, LoraSharding::kFullySharded);
    // Steps that name none of them go on as before.
    EXPECT_EQ(Added(*group, {Request({"a0"}, 5, 1), Request({"a3"}, 7, 1)}), Count{});
    const auto share = [&](uint64_t lora_rank) { return (lora_rank + tp_size - 1) / tp_size; };
    // a2 on 7 rows: q,k,v then gate,up are gathered, o and down summed, on [rows, lora_rank] alone.
    const uint64_t gathered = uint64_t{7} * tp_size * share(16) * 5 * 4;
    const uint64_t summed = uint64_t{7} * 16 * 2 * 4;
    EXPECT_EQ(Added(*group, {Request({"a0"}, 5, 1), Request({"a2"}, 7, 1), Request({}, 3, 1)}),
              (Count{2 * kLayers, summed * kLayers, 2 * kLayers, gathered * kLayers}));
    // One module of one layer: k, lora_rank 5. Row-parallel ones alone: no gather.
    EXPECT_EQ(Added(*group, {Request({"a4"}, 3, 1)}),
              (Count{0, 0, 1, uint64_t{3} * tp_size * share(5) * 4}));
    EXPECT_EQ(Added(*group, {Request({"a5"}, 3, 1)}),
              (Count{2 * kLayers, uint64_t{3} * 9 * 4 * 2 * kLayers, 0, 0}));
    // Several adapters share the collectives.
    const Count both = Added(*group, {Request({"a2"}, 7, 1), Request({"a4"}, 3, 1)});
    EXPECT_EQ(both.reduces, uint64_t{2} * kLayers);
    EXPECT_EQ(both.gathers, uint64_t{2} * kLayers);
  }
}

}  // namespace
}  // namespace rootstock
