#include "common/layout/adapter_image.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "common/base/half.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

ModelSpec Model() {
  ModelSpec m;
  m.num_layers = 2;
  m.num_heads = 6;
  m.num_kv_heads = 3;
  m.head_dim = 16;
  m.hidden_size = 64;
  m.ffn_size = 104;  // 13 units of 8: uneven over 2 and 3
  m.vocab_size = 320;
  return m;
}

constexpr int kLoraRank = 5;

float AValue(int layer, Module m, int r, int i) {
  return static_cast<float>(1 + layer) + 0.25f * static_cast<float>(m) + 0.0137f * r - 0.0071f * i;
}
float BValue(int layer, Module m, int o, int r) { return -AValue(layer, m, r, o); }

std::vector<uint8_t> Fill(DType dtype, int rows, int columns, auto value) {
  std::vector<uint8_t> out(size_t{1} * rows * columns * DTypeBytes(dtype));
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      const float v = value(i, j);
      const uint16_t half = FloatToBF16(v);
      uint8_t* at = out.data() + (size_t{1} * i * columns + j) * DTypeBytes(dtype);
      std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&v) : &half,
                  DTypeBytes(dtype));
    }
  }
  return out;
}

// All modules of all layers.
std::string Blob(const ModelSpec& model, DType dtype, LoraSpec& spec) {
  std::vector<LoraWeights> weights;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const Module m : kAllModules) {
      spec.modules.push_back({layer, m, kLoraRank, 0.1f});
      weights.push_back({dtype, dtype,
                         Fill(dtype, kLoraRank, model.in_features(m),
                              [&](int r, int i) { return AValue(layer, m, r, i); }),
                         Fill(dtype, model.out_features(m), kLoraRank,
                              [&](int o, int r) { return BValue(layer, m, o, r); })});
    }
  }
  return EncodeCanonical(spec, weights, model);
}

std::span<const uint8_t> Bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// Pages full of 0xAA.
struct Pages {
  Pages(uint32_t count, uint32_t bytes) {
    for (uint32_t i = 0; i < count; ++i) {
      memory.emplace_back(bytes, std::byte{0xAA});
      pointers.push_back(memory.back().data());
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> pointers;
};

struct Case {
  int tp_size;
  LoraSharding sharding;
  DType file, device;
};

class ImageOverRanks : public testing::TestWithParam<Case> {};

TEST_P(ImageOverRanks, EveryRowHoldsItsNumbersAndNothingElseIsTouched) {
  const Case c = GetParam();
  const ModelSpec model = Model();
  LoraSpec spec;
  const std::string blob = Blob(model, c.file, spec);
  const auto adapter = CanonicalAdapter::Parse(Bytes(blob), model);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto tp = MakeTpPlan(model, c.tp_size);
  constexpr uint32_t kPageBytes = 1024;
  const auto layout = AdapterLayout::Create(model, spec, *tp, c.sharding, c.device, kPageBytes);
  ASSERT_TRUE(layout.ok());
  for (int rank = 0; rank < c.tp_size; ++rank) {
    Pages pages(layout->num_pages(), kPageBytes);
    ASSERT_TRUE(WriteAdapterRows(*adapter, *layout, rank, pages.pointers).ok());
    size_t untouched = size_t{1} * layout->num_pages() * kPageBytes;
    for (const LayoutEntry& e : layout->entries(rank)) {
      for (int r = 0; r < e.ranks.size(); ++r) {
        const RowPlace place = layout->rows(rank)[e.first_row + r];
        const auto* row =
            reinterpret_cast<const uint8_t*>(pages.pointers[place.page]) + place.offset;
        const int component = e.ranks.begin + r;
        for (int i = 0; i < e.elements.size(); ++i) {
          const int at = e.elements.begin + i;
          float want = e.role == LoraRole::kA ? AValue(e.layer, e.module, component, at)
                                              : BValue(e.layer, e.module, at, component);
          if (c.file == DType::kBF16 || c.device == DType::kBF16) {
            want = BF16ToFloat(FloatToBF16(want));
          }
          ASSERT_EQ(LoadFloat(row, c.device, i), want);
        }
        const size_t bytes = e.elements.size() * DTypeBytes(c.device);
        const size_t padded = (bytes + 15) / 16 * 16;
        for (size_t i = bytes; i < padded; ++i) ASSERT_EQ(row[i], 0);
        untouched -= padded;
      }
    }
    size_t found = 0;
    for (const auto& page : pages.memory) {
      for (const std::byte b : page) found += b == std::byte{0xAA};
    }
    EXPECT_GE(found, untouched);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ImageOverRanks,
    testing::Values(Case{1, LoraSharding::kReplicated, DType::kF32, DType::kF32},
                    Case{2, LoraSharding::kReplicated, DType::kF32, DType::kBF16},
                    Case{3, LoraSharding::kReplicated, DType::kBF16, DType::kF32},
                    Case{6, LoraSharding::kReplicated, DType::kBF16, DType::kBF16},
                    Case{2, LoraSharding::kFullySharded, DType::kF32, DType::kF32},
                    Case{3, LoraSharding::kFullySharded, DType::kBF16, DType::kBF16},
                    Case{6, LoraSharding::kFullySharded, DType::kF32, DType::kBF16}));

// B3: a second load writes the same bytes; the scale is nowhere in them.
TEST(AdapterImage, B3_LoadingTwiceWritesTheSameBytesWhateverTheScale) {
  const ModelSpec model = Model();
  LoraSpec spec;
  const std::string blob = Blob(model, DType::kF32, spec);
  const auto adapter = CanonicalAdapter::Parse(Bytes(blob), model);
  const auto layout = AdapterLayout::Create(model, spec, *MakeTpPlan(model, 1),
                                            LoraSharding::kReplicated, DType::kF32, 1024);
  Pages once(layout->num_pages(), 1024), twice(layout->num_pages(), 1024);
  ASSERT_TRUE(WriteAdapterRows(*adapter, *layout, 0, once.pointers).ok());
  ASSERT_TRUE(WriteAdapterRows(*adapter, *layout, 0, twice.pointers).ok());
  ASSERT_TRUE(WriteAdapterRows(*adapter, *layout, 0, twice.pointers).ok());
  EXPECT_EQ(once.memory, twice.memory);
  EXPECT_EQ(LoadFloat(reinterpret_cast<const uint8_t*>(once.pointers[0]), DType::kF32, 0),
            AValue(0, Module::kQ, 0, 0));
}

TEST(AdapterImage, AnotherAdaptersLayoutIsRefused) {
  const ModelSpec model = Model();
  LoraSpec spec;
  const std::string blob = Blob(model, DType::kF32, spec);
  const auto adapter = CanonicalAdapter::Parse(Bytes(blob), model);
  const auto tp = MakeTpPlan(model, 1);
  const auto layout_of = [&](const LoraSpec& s, DType t) {
    return *AdapterLayout::Create(model, s, *tp, LoraSharding::kReplicated, t, 1024);
  };
  Pages pages(400, 1024);
  LoraSpec wider = spec, fewer = spec, swapped = spec;
  wider.modules[3].lora_rank = kLoraRank + 1;
  fewer.modules.pop_back();
  swapped.modules[13].module = Module::kGate;
  for (const LoraSpec& other : {wider, fewer, swapped}) {
    const auto status =
        WriteAdapterRows(*adapter, layout_of(other, DType::kF32), 0, pages.pointers);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kDigestMismatch);
  }
  const AdapterLayout right = layout_of(spec, DType::kF32);
  EXPECT_FALSE(
      WriteAdapterRows(*adapter, right, 0, std::span(pages.pointers).first(right.num_pages() - 1))
          .ok());
  EXPECT_FALSE(WriteAdapterRows(*adapter, layout_of(spec, DType::kF16), 0, pages.pointers).ok());
}

TEST(AdapterImage, NonfiniteIsRefusedByName) {
  const ModelSpec model = Model();
  LoraSpec spec;
  std::string blob = Blob(model, DType::kF32, spec);
  const float nan = NAN;
  std::memcpy(blob.data() + blob.size() - 4, &nan, 4);  // the end of layer 1's v_proj.lora_B
  const auto adapter = CanonicalAdapter::Parse(Bytes(blob), model);
  const auto layout = AdapterLayout::Create(model, spec, *MakeTpPlan(model, 1),
                                            LoraSharding::kReplicated, DType::kBF16, 1024);
  Pages pages(layout->num_pages(), 1024);
  const auto status = WriteAdapterRows(*adapter, *layout, 0, pages.pointers);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kNonfinite);
  EXPECT_NE(std::string(status.message()).find("layers.1.self_attn.v_proj"), std::string::npos);
}

// With the file mapped and everything outside a tp_rank's share made unreadable, writing succeeds:
// it reads no more than its pages. Rows of A that two ranks both need are in both shares.
TEST(AdapterImage, ReadsOnlyItsShare) {
  ModelSpec model = Model();
  model.num_layers = 1;
  model.ffn_size = 65536;
  LoraSpec spec;
  spec.modules = {{0, Module::kGate, 4, 1.0f}};
  const std::vector<LoraWeights> weights = {
      {DType::kF32, DType::kF32, Fill(DType::kF32, 4, 64, [](int, int) { return 1.0f; }),
       Fill(DType::kF32, 65536, 4, [](int, int) { return 2.0f; })}};
  const std::string blob = EncodeCanonical(spec, weights, model);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (blob.size() + page - 1) / page * page;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memcpy(memory, blob.data(), blob.size());
  const auto adapter =
      CanonicalAdapter::Parse({static_cast<const uint8_t*>(memory), blob.size()}, model);
  ASSERT_TRUE(adapter.ok());
  // lora_B is the file's end; tp_rank 0 needs its first half.
  const size_t b_half = adapter->modules()[0].b.bytes.size() / 2;
  const size_t guard = (blob.size() - b_half + page - 1) / page * page;
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + guard, bytes - guard, PROT_NONE), 0);
  const auto layout = AdapterLayout::Create(model, spec, *MakeTpPlan(model, 2),
                                            LoraSharding::kReplicated, DType::kF32, 1 << 18);
  ASSERT_TRUE(layout.ok()) << layout.status();
  Pages pages(layout->num_pages(), 1 << 18);
  EXPECT_TRUE(WriteAdapterRows(*adapter, *layout, 0, pages.pointers).ok());
  munmap(memory, bytes);
}

}  // namespace
}  // namespace rootstock
