// Runs batches of rows on the GPU for tests, and says what the reference makes of them.
#pragma once

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sampler/sampler.h"
#include "kernels/sampler/sampler_cuda.h"

namespace rootstock::kernels::cuda {

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

// Device memory of n elements. *One thread.*
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : size_(n) {
    Check(cudaMalloc(reinterpret_cast<void**>(&data_), (n + 1) * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    Check(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  std::vector<T> Host() const {
    std::vector<T> out(size_);
    Check(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// counts, adjust_* and slot of `row` are filled in by RunBatch.
struct RowCase {
  SampleRow row;
  std::vector<float> logits;  // of the batch's type already, as f32
  std::vector<TokenCount> counts;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> banned;
};

struct BatchShape {
  Type type = Type::kF32;
  int vocab = 0;
  int pads = 0;     // rows beyond the live ones
  int max_top = 0;  // stride of the top entries
  bool greedy_only = false;
};

constexpr int32_t kPoison = 0x5a5a5a5a;  // every output before the run

struct Outputs {
  std::vector<int32_t> tokens, ranks, top_ids, last_tokens;  // last_tokens: of row i at slot i
  std::vector<float> logprobs, top_logprobs;
  std::vector<uint32_t> counts;  // [rows with counts, vocab]
};

inline constexpr Type kTypes[] = {Type::kF32, Type::kBF16};
// Not multiples of a tile, of a vector, of a block's part; fewer tiles than blocks; real ones.
inline constexpr int kVocabs[] = {1, 7, 255, 1000, 4099, 32000, 50257, 128256};

enum class Look { kFlat, kSpread, kPeaked, kConstant, kFewValues };
inline constexpr Look kLooks[] = {Look::kFlat, Look::kSpread, Look::kPeaked, Look::kConstant,
                                  Look::kFewValues};

// Random logits [vocab] of the type, parameters that `number` tells from others'.
RowCase MakeCase(Look look, Type type, int vocab, uint32_t number, std::mt19937& random);

std::vector<uint16_t> ToBf16(const std::vector<float>& values);

Outputs RunBatch(const BatchShape& shape, std::vector<RowCase> cases);

// The reference's token, and whether `token` may stand for it: the draw lies within kDrawBound of
// the whole mass of one of the token's borders.
constexpr double kDrawBound = 1e-6;
struct Verdict {
  int32_t expected = -1;
  bool equal = false;
  bool justified = false;
  std::string why;
};
Verdict Judge(const RowCase& c, int32_t token);

}  // namespace rootstock::kernels::cuda
