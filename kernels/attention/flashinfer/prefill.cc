#include "kernels/attention/flashinfer/prefill.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/attention/flashinfer/call.h"
#include "kernels/attention/flashinfer/plan.h"
#include "kernels/upload/upload_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

std::string Describe(const char* what, cudaError_t error) {
  return error == cudaSuccess ? "" : std::string(what) + ": " + cudaGetErrorString(error);
}

// Integers on their way to the device: written to pinned memory, uploaded in stream order. Two
// buffers by turns, so that the last step's upload need not be over. One thread.
class Staging {
 public:
  ~Staging() {
    for (int i = 0; i < 2; ++i) {
      if (copied_[i] != nullptr) cudaEventDestroy(copied_[i]);
      cudaFreeHost(host_[i]);
    }
    cudaFree(device_);
  }

  cudaError_t Allocate(size_t ints) {
    ints_ = ints;
    cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&device_), ints * sizeof(int32_t));
    for (int i = 0; i < 2 && error == cudaSuccess; ++i) {
      error = cudaMallocHost(reinterpret_cast<void**>(&host_[i]), ints * sizeof(int32_t));
      if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming);
      }
    }
    return error;
  }

  // Begins the next buffer.
  cudaError_t Begin() {
    turn_ ^= 1;
    used_ = 0;
    return cudaEventSynchronize(copied_[turn_]);  // of the step before the last
  }
  // Where `count` ints go on the host, and their address on the device.
  int32_t* Take(size_t count, int32_t** device) {
    if (used_ + count > ints_) return nullptr;
    int32_t* host = host_[turn_] + used_;
    *device = device_ + used_;
    used_ += count;
    return host;
  }
  cudaError_t Send(cudaStream_t stream) {
    const cudaError_t error = Upload(device_, host_[turn_], used_ * sizeof(int32_t), stream);
    return error == cudaSuccess ? cudaEventRecord(copied_[turn_], stream) : error;
  }

 private:
  size_t ints_ = 0, used_ = 0;
  int turn_ = 0;
  int32_t* host_[2] = {};
  int32_t* device_ = nullptr;
  cudaEvent_t copied_[2] = {};
};

// One thread.
class Prefill : public FlashPrefill {
 public:
  Prefill(const AttentionShapes& shapes, bool fa3, int blocks)
      : shapes_(shapes), fa3_(fa3), blocks_(blocks) {}

  cudaError_t Allocate() {
    const HeadShape& heads = shapes_.heads;
    const size_t rows = shapes_.max_rows, tokens = shapes_.max_tokens;
    const size_t tiles = tokens * queries_a_token() / tile() + std::min(rows, tokens / 2);
    return staging_.Allocate(fa3_ ? blocks_ + 1 + 7 * tiles * heads.num_heads
                                  : 3 * tiles + 1 + rows);
  }

  std::string Plan(const AttentionBatch& batch, cudaStream_t stream) override {
    call_.rows = batch.device;
    call_.num_rows = batch.num_rows;
    call_.num_tokens = batch.num_tokens;
    call_.heads = shapes_.heads;
    const std::vector<QueryTile> tiles = QueryTiles(batch, queries_a_token(), tile());
    call_.work.count = 0;
    if (tiles.empty()) return "";
    cudaError_t error = staging_.Begin();
    if (error != cudaSuccess) return Describe("prefill", error);
    if (!(fa3_ ? PlanFa3(batch, tiles) : PlanFa2(batch, tiles))) {
      return "prefill: a step of " + std::to_string(batch.num_tokens) + " tokens in " +
             std::to_string(batch.num_rows) + " rows is more than was made room for";
    }
    return Describe("prefill", staging_.Send(stream));
  }

  std::string Run(const PagedKv& kv, const void* qkv, void* out, cudaStream_t stream) override {
    if (call_.work.count == 0) return "";
    call_.kv = kv;
    call_.qkv = qkv;
    call_.out = out;
    const bool small = shapes_.heads.head_dim == 64;
#ifdef ROOTSTOCK_FA3
    if (fa3_) return small ? Fa3Dim64(call_, stream) : Fa3Dim128(call_, stream);
#endif
    return small ? Fa2Dim64(call_, stream) : Fa2Dim128(call_, stream);
  }

 private:
  int queries_a_token() const {
    return fa3_ ? 1 : shapes_.heads.num_heads / shapes_.heads.num_kv_heads;
  }
  int tile() const { return fa3_ ? Fa3Tile(shapes_.heads.head_dim) : kFa2Tile; }

  bool PlanFa2(const AttentionBatch& batch, const std::vector<QueryTile>& tiles) {
    FlashWork& work = call_.work;
    const size_t n = tiles.size();
    int32_t* row = staging_.Take(n, &work.row);
    int32_t* tile = staging_.Take(n, &work.tile);
    int32_t* zeros = staging_.Take(n, &work.zeros);
    int32_t* last_page_len = staging_.Take(batch.num_rows, &work.last_page_len);
    if (last_page_len == nullptr) return false;
    for (size_t i = 0; i < n; ++i) {
      row[i] = tiles[i].row;
      tile[i] = tiles[i].tile;
      zeros[i] = 0;
    }
    for (int r = 0; r < batch.num_rows; ++r) {
      last_page_len[r] = (batch.host.kv_len[r] + shapes_.page_tokens - 1) % shapes_.page_tokens + 1;
    }
    work.count = static_cast<int>(n);
    return true;
  }

  bool PlanFa3(const AttentionBatch& batch, const std::vector<QueryTile>& tiles) {
    const int heads = shapes_.heads.num_heads;
    const std::vector<int> blocks = Assign(tiles, heads, blocks_);
    const size_t n = blocks.size();
    FlashWork& work = call_.work;
    int32_t* begin = staging_.Take(blocks_ + 1, &work.block_begin);
    int32_t* row = staging_.Take(n, &work.row);
    int32_t* tile = staging_.Take(n, &work.tile);
    int32_t* q_begin = staging_.Take(n, &work.q_begin);
    int32_t* q_len = staging_.Take(n, &work.q_len);
    int32_t* page_begin = staging_.Take(n, &work.page_begin);
    int32_t* kv_len = staging_.Take(n, &work.kv_len);
    int32_t* head = staging_.Take(n, &work.head);
    if (head == nullptr) return false;
    std::fill(begin, begin + blocks_ + 1, 0);
    for (int b : blocks) ++begin[b + 1];
    std::partial_sum(begin, begin + blocks_ + 1, begin);
    std::vector<int32_t> next(begin, begin + blocks_);
    for (size_t i = 0; i < n; ++i) {
      const QueryTile& t = tiles[i / heads];
      const int at = next[blocks[i]]++;
      row[at] = t.row;
      tile[at] = t.tile;
      q_begin[at] = batch.host.q_begin[t.row];
      q_len[at] = batch.host.q_begin[t.row + 1] - q_begin[at];
      page_begin[at] = batch.host.page_begin[t.row];
      kv_len[at] = batch.host.kv_len[t.row];
      head[at] = static_cast<int32_t>(i % heads);
    }
    work.count = static_cast<int>(n);
    return true;
  }

  AttentionShapes shapes_;
  bool fa3_;
  int blocks_;
  Staging staging_;
  FlashCall call_;
};

// What of the device decides which kernel.
struct Device {
  int major = 0, processors = 0, shared_bytes = 0;
};

cudaError_t Ask(Device& device) {
  int id = 0;
  cudaError_t error = cudaGetDevice(&id);
  const std::pair<cudaDeviceAttr, int*> questions[] = {
      {cudaDevAttrComputeCapabilityMajor, &device.major},
      {cudaDevAttrMultiProcessorCount, &device.processors},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &device.shared_bytes}};
  for (const auto& [attribute, value] : questions) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, id);
  }
  return error;
}

}  // namespace

std::unique_ptr<FlashPrefill> MakeFlashPrefill(const AttentionShapes& shapes, FlashKernel kernel,
                                               std::string* error) {
  const int dim = shapes.heads.head_dim;
  if (shapes.type != Type::kBF16 || (dim != 64 && dim != 128)) return nullptr;
  Device device;
  cudaError_t status = Ask(device);
#ifdef ROOTSTOCK_FA3
  const bool has_fa3 = device.major == 9;
#else
  const bool has_fa3 = false;
#endif
  const bool fa3 = kernel != FlashKernel::kFa2 && has_fa3;
  if (kernel == FlashKernel::kFa3 && !has_fa3) return nullptr;
  if (status == cudaSuccess && !fa3 && device.shared_bytes < kFa2SharedBytes) return nullptr;
  auto prefill = std::make_unique<Prefill>(shapes, fa3, device.processors);
  if (status == cudaSuccess) status = prefill->Allocate();
  if (status != cudaSuccess) {
    *error = Describe("prefill", status);
    return nullptr;
  }
  return prefill;
}

}  // namespace rootstock::kernels::cuda
