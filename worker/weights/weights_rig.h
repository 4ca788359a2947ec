// Model directories for this folder's tests.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/half.h"
#include "common/model/model_spec.h"
#include "common/safetensors/safetensors.h"
#include "worker/weights/model_weights.h"

namespace rootstock {

// Element i of a tensor, exact in every type.
inline float Value(const std::string& name, size_t i) {
  return static_cast<float>((std::hash<std::string>()(name) + i * 7) % 251) - 125.0f;
}

// A model directory with files written by the test. *One thread.*
class ModelDir {
 public:
  explicit ModelDir(const std::string& name,
                    const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path_(parent / ("rootstock-" + name + "-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << "{}";
  }
  ~ModelDir() { std::filesystem::remove_all(path_); }
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

  void Add(const std::string& name, std::vector<int64_t> shape, DType dtype) {
    size_t n = 1;
    for (const int64_t d : shape) n *= d;
    std::vector<uint8_t>& data = data_.emplace_back(n * DTypeBytes(dtype));
    for (size_t i = 0; i < n; ++i) {
      const float v = Value(name, i);
      // Small whole numbers: the sign, exponent and mantissa of f16 follow from those of f32.
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof(bits));
      const uint16_t f16 = v == 0 ? 0
                                  : static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                                          (((bits >> 23 & 0xff) - 112) << 10) |
                                                          (bits >> 13 & 0x3ff));
      const uint16_t half = dtype == DType::kF16 ? f16 : FloatToBF16(v);
      std::memcpy(&data[i * DTypeBytes(dtype)],
                  dtype == DType::kF32 ? static_cast<const void*>(&v) : &half, DTypeBytes(dtype));
    }
    tensors_.push_back({name, dtype, std::move(shape), data});
  }

  void AddModel(const ModelSpec& spec, DType dtype) {
    Add("model.embed_tokens.weight", {spec.vocab_size, spec.hidden_size}, dtype);
    if (!spec.tie_word_embeddings) {
      Add("lm_head.weight", {spec.vocab_size, spec.hidden_size}, dtype);
    }
    Add("model.norm.weight", {spec.hidden_size}, dtype);
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer);
      Add(prefix + ".input_layernorm.weight", {spec.hidden_size}, dtype);
      Add(prefix + ".post_attention_layernorm.weight", {spec.hidden_size}, dtype);
      for (const Module m : kAllModules) {
        Add(ModulePath(layer, m) + ".weight", {spec.out_features(m), spec.in_features(m)}, dtype);
        if (m == Module::kQ || m == Module::kK || m == Module::kV) {
          Add(ModulePath(layer, m) + ".bias", {spec.out_features(m)}, dtype);
        }
      }
    }
  }

  void Remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorView& t) { return t.name == name; });
  }
  void Write() {
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << EncodeSafetensors(tensors_, {});
  }

 private:
  std::filesystem::path path_;
  std::list<std::vector<uint8_t>> data_;
  std::vector<TensorView> tensors_;
};

// Bytes of a file's elements that a rank's slices have.
inline uint64_t ShareBytes(const ModelWeights& weights, const ModelSpec& spec, size_t element) {
  uint64_t n = spec.hidden_size + uint64_t{1} * weights.embedding().rows * spec.hidden_size;
  if (!spec.tie_word_embeddings) n *= 2, n -= spec.hidden_size;
  for (const LayerWeights& w : weights.layers()) {
    for (const Matrix& m : {w.qkv, w.o, w.gate_up, w.down}) n += uint64_t{1} * m.rows * m.cols;
    n += 2 * spec.hidden_size + w.qkv.rows;
  }
  return n * element;
}

// Where the ranks of a test meet as a worker's do: once one has said an error it is every later
// meeting's, and nobody waits any more. *Thread-safe.*
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}

  absl::Status Come(const absl::Status& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!agreed_.ok()) return agreed_;
    said_.Update(mine);
    const uint64_t round = round_;
    if (++came_ == ranks_) {
      came_ = 0;
      ++round_;
      agreed_ = said_;
      all_came_.notify_all();
    }
    all_came_.wait(lock, [&] { return round_ != round; });
    return agreed_;
  }

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  int came_ = 0;
  uint64_t round_ = 0;
  absl::Status said_, agreed_;
};

using LoadedWeights = absl::StatusOr<std::unique_ptr<ModelWeights>>;

// Calls rank_main(tp_rank, peers) for all ranks of one host, each on a thread of its own; what they
// return, by tp_rank.
inline std::vector<LoadedWeights> LoadTogether(
    int tp_size, const std::function<LoadedWeights(int, const LoadPeers&)>& rank_main) {
  std::vector<int> on_host(tp_size);
  for (int rank = 0; rank < tp_size; ++rank) on_host[rank] = rank;
  Meeting meeting(tp_size);
  const LoadPeers peers{on_host, [&meeting] { return meeting.Come(absl::OkStatus()); }};
  std::vector<LoadedWeights> loaded(tp_size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < tp_size; ++rank) {
    ranks.emplace_back([&, rank] {
      loaded[rank] = rank_main(rank, peers);
      meeting.Come(loaded[rank].status()).IgnoreError();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return loaded;
}

}  // namespace rootstock
