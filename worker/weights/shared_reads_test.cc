// Which pages each rank of a host brings, by calculation: real models' shapes, no files.
#include <gtest/gtest.h>

#include <map>

#include "worker/device/cpu_device.h"
#include "worker/weights/weight_loader.h"

namespace rootstock {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHeaderBytes = 35161;  // pages and elements begin anywhere
constexpr uint64_t kElement = 2;

// What a rank asked of a tensor, and after how many meetings.
struct Request {
  std::string tensor;
  Range rows, cols;
  size_t meetings = 0;
};

// Remembers what is asked of it and reads nothing. *One thread.*
class Recorder : public WeightSource {
 public:
  absl::Status Check(const TensorShape& tensor) const override { return absl::OkStatus(); }
  absl::Status CheckNothingLeft(const std::vector<TensorShape>& used) const override {
    for (const TensorShape& tensor : used) shapes_[tensor.name] = tensor;
    return absl::OkStatus();
  }
  size_t ElementBytes(const TensorShape& tensor) const override { return kElement; }
  void Prefetch(const TensorShape& tensor, Range rows, Range cols) override {
    requests_.push_back({tensor.name, rows, cols, meetings_});
  }
  void Read(const TensorShape& tensor, Range rows, Range cols, DType to, void* out) override {
    requests_.push_back({tensor.name, rows, cols, meetings_});
  }
  absl::StatusOr<Digest> Fingerprint() const override { return Digest(); }
  void Meet() { ++meetings_; }

  const std::map<std::string, TensorShape>& shapes() const { return shapes_; }
  const std::vector<Request>& requests() const { return requests_; }
  size_t meetings() const { return meetings_; }

 private:
  mutable std::map<std::string, TensorShape> shapes_;
  std::vector<Request> requests_;
  size_t meetings_ = 0;
};

struct Load {
  Recorder source;
  uint64_t share = 0;  // bytes of its slices
};

// A host's page cache and the one file of a model. *One thread.*
class Host {
 public:
  explicit Host(const std::map<std::string, TensorShape>& shapes) : shapes_(shapes) {
    uint64_t at = kHeaderBytes;
    for (const auto& [name, shape] : shapes) {
      begin_[name] = at;
      at += kElement * shape.rows * shape.cols;
    }
    cached_.assign(at / kPage + 1, false);
  }

  // Bytes that come from the disk for it.
  uint64_t Bring(const Request& request) {
    const TensorShape& shape = shapes_.at(request.tensor);
    const uint64_t stride = kElement * shape.cols;
    uint64_t at = begin_.at(request.tensor) + request.rows.begin * stride;
    if (request.cols.size() == shape.cols) return Bring(at, request.rows.size() * stride);
    uint64_t bytes = 0;
    for (int row = 0; row < request.rows.size(); ++row, at += stride) {
      bytes += Bring(at + kElement * request.cols.begin, kElement * request.cols.size());
    }
    return bytes;
  }
  // As the fingerprint does.
  uint64_t BringEnds() {
    uint64_t bytes = 0;
    for (const auto& [name, shape] : shapes_) {
      const uint64_t size = kElement * shape.rows * shape.cols, end = std::min(kPage, size);
      bytes += Bring(begin_[name], end) + Bring(begin_[name] + size - end, end);
    }
    return bytes;
  }

 private:
  uint64_t Bring(uint64_t at, uint64_t size) {
    if (size == 0) return 0;
    uint64_t bytes = 0;
    for (uint64_t page = at / kPage; page <= (at + size - 1) / kPage; ++page) {
      if (!cached_[page]) bytes += kPage;
      cached_[page] = true;
    }
    return bytes;
  }

  const std::map<std::string, TensorShape>& shapes_;
  std::map<std::string, uint64_t> begin_;
  std::vector<bool> cached_;
};

std::vector<Load> Loads(const ModelSpec& spec, const TpPlan& tp, const std::vector<int>& on_host) {
  std::vector<Load> loads(on_host.size());
  CpuDevice device(1);  // memory that nothing touches
  for (size_t i = 0; i < on_host.size(); ++i) {
    Recorder& source = loads[i].source;
    LoadOptions options;
    options.peers = {on_host, [&source] {
                       source.Meet();
                       return absl::OkStatus();
                     }};
    const auto weights = WeightLoader(spec, tp, on_host[i], device, options, source).Run();
    EXPECT_TRUE(weights.ok()) << weights.status();
    loads[i].share = (*weights)->bytes_read();
  }
  return loads;
}

// Bytes that come from the disk for rank `hasty` of the host when, from one meeting to the next, it
// is before all the others with whatever it does, the fingerprint included.
uint64_t AtMost(const std::vector<Load>& loads, size_t hasty) {
  Host host(loads[0].source.shapes());
  uint64_t bytes = host.BringEnds();
  std::vector<size_t> next(loads.size(), 0);
  const auto go_on = [&](size_t rank, size_t meetings) {
    const std::vector<Request>& requests = loads[rank].source.requests();
    uint64_t brought = 0;
    for (; next[rank] < requests.size() && requests[next[rank]].meetings == meetings;
         ++next[rank]) {
      brought += host.Bring(requests[next[rank]]);
    }
    return brought;
  };
  for (size_t meetings = 0; meetings <= loads[0].source.meetings(); ++meetings) {
    bytes += go_on(hasty, meetings);
    for (size_t rank = 0; rank < loads.size(); ++rank) go_on(rank, meetings);
  }
  return bytes;
}

struct Case {
  std::string name;
  int layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
  bool tied;
  int tp_size;
  std::vector<int> on_host;
  double most = 1.1;  // of the rank that brings most for its share
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class SharedReadsTest : public testing::TestWithParam<Case> {};

TEST_P(SharedReadsTest, EachRankBringsItsShare) {
  const Case& c = GetParam();
  ModelSpec spec;
  spec.architecture = Architecture::kLlama;
  spec.num_layers = c.layers;
  spec.hidden_size = c.hidden;
  spec.ffn_size = c.ffn;
  spec.num_heads = c.heads;
  spec.num_kv_heads = c.kv_heads;
  spec.head_dim = c.head_dim;
  spec.vocab_size = c.vocab;
  spec.tie_word_embeddings = c.tied;
  const std::vector<Load> loads = Loads(spec, *MakeTpPlan(spec, c.tp_size), c.on_host);
  for (size_t i = 0; i < loads.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tp_rank " << c.on_host[i]);
    // Ranks that meet another number of times would wait for one another for ever.
    EXPECT_EQ(loads[i].source.meetings(), loads[0].source.meetings());
    const double ratio = 1.0 * AtMost(loads, i) / loads[i].share;
    EXPECT_GE(ratio, 0.9);
    EXPECT_LE(ratio, c.most);
  }
}

const std::vector<int> kEight = {0, 1, 2, 3, 4, 5, 6, 7};

INSTANTIATE_TEST_SUITE_P(
    Models, SharedReadsTest,
    testing::Values(
        Case{"SmolLM2At2", 30, 576, 1536, 9, 3, 64, 49152, true, 2, {0, 1}},
        Case{"SmolLM2At3", 30, 576, 1536, 9, 3, 64, 49152, true, 3, {0, 1, 2}},
        Case{"Of8BAt2", 32, 4096, 14336, 32, 8, 128, 128256, false, 2, {0, 1}},
        Case{"Of8BAt8", 32, 4096, 14336, 32, 8, 128, 128256, false, 8, kEight},
        Case{"Of70BAt8", 80, 8192, 28672, 64, 8, 128, 128256, false, 8, kEight},
        Case{"Of70BOnTwoHosts", 80, 8192, 28672, 64, 8, 128, 128256, false, 8, {0, 1, 2, 3}},
        Case{"Of8BOnTwoHosts", 32, 4096, 14336, 32, 8, 128, 128256, false, 8, {0, 1, 2, 3}, 1.2},
        Case{"Of8BOnTwoHostsInTurns",
             32,
             4096,
             14336,
             32,
             8,
             128,
             128256,
             false,
             8,
             {1, 3, 5, 7},
             1.35}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rootstock
