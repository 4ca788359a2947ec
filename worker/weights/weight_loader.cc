#include "worker/weights/weight_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/weights/shared_columns.h"

namespace rootstock {
namespace {

constexpr size_t kStagedBytes = size_t{64} << 20;       // of one step to a device of its own memory
constexpr uint64_t kSharedBytes = uint64_t{128} << 20;  // of o and down from meeting to meeting

}  // namespace

WeightLoader::WeightLoader(const ModelSpec& spec, const TpPlan& tp, int tp_rank, Device& device,
                           const LoadOptions& options, WeightSource& source)
    : spec_(spec),
      tp_(tp),
      tp_rank_(tp_rank),
      device_(device),
      options_(options),
      source_(source),
      weights_(new ModelWeights) {}

absl::StatusOr<std::unique_ptr<ModelWeights>> WeightLoader::Run() {
  if (options_.dtype == DType::kF16) {
    return InvalidField(Reason::kDtype, "dtype", "f16", "weights are kept in f32 or bf16");
  }
  RETURN_IF_ERROR(PlanModel());
  std::vector<TensorShape> used;
  for (const Slice& slice : slices_) {
    RETURN_IF_ERROR(source_.Check(slice.tensor));
    used.push_back(slice.tensor);
  }
  RETURN_IF_ERROR(source_.CheckNothingLeft(used));
  RETURN_IF_ERROR(ReadAll());
  ASSIGN_OR_RETURN(weights_->fingerprint_, source_.Fingerprint());
  return std::move(weights_);
}

absl::StatusOr<std::byte*> WeightLoader::Allocate(size_t elements, DType dtype) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer,
                   device_.Allocate(elements * DTypeBytes(dtype), "model weights"));
  std::byte* data = buffer.data();
  weights_->device_bytes_ += buffer.bytes();
  weights_->buffers_.push_back(std::move(buffer));
  return data;
}

absl::Status WeightLoader::PlanModel() {
  ASSIGN_OR_RETURN(weights_->embedding_, PlanVocabulary("model.embed_tokens.weight"));
  weights_->head_ = weights_->embedding_;
  if (!spec_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(weights_->head_, PlanVocabulary("lm_head.weight"));
  }
  ASSIGN_OR_RETURN(weights_->final_norm_, PlanNorm("model.norm.weight", spec_.hidden_size));
  weights_->layers_.resize(spec_.num_layers);
  for (int layer = 0; layer < spec_.num_layers; ++layer) RETURN_IF_ERROR(PlanLayer(layer));
  return absl::OkStatus();
}

absl::Status WeightLoader::PlanLayer(int layer) {
  layer_begin_.push_back(slices_.size());
  LayerWeights& w = weights_->layers_[layer];
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  ASSIGN_OR_RETURN(w.input_norm, PlanNorm(prefix + "input_layernorm.weight", spec_.hidden_size));
  ASSIGN_OR_RETURN(w.qkv, PlanProjection(layer, {Module::kQ, Module::kK, Module::kV}));
  RETURN_IF_ERROR(PlanQkvBias(layer, w));
  if (spec_.qk_norm) {
    ASSIGN_OR_RETURN(w.q_norm, PlanNorm(prefix + "self_attn.q_norm.weight", spec_.head_dim));
    ASSIGN_OR_RETURN(w.k_norm, PlanNorm(prefix + "self_attn.k_norm.weight", spec_.head_dim));
  }
  ASSIGN_OR_RETURN(w.o, PlanProjection(layer, {Module::kO}));
  ASSIGN_OR_RETURN(w.post_norm,
                   PlanNorm(prefix + "post_attention_layernorm.weight", spec_.hidden_size));
  ASSIGN_OR_RETURN(w.gate_up, PlanProjection(layer, {Module::kGate, Module::kUp}));
  ASSIGN_OR_RETURN(w.down, PlanProjection(layer, {Module::kDown}));
  return absl::OkStatus();
}

TensorShape WeightLoader::WeightOf(int layer, Module module) const {
  return {ModulePath(layer, module) + ".weight", spec_.out_features(module),
          spec_.in_features(module)};
}

absl::StatusOr<Matrix> WeightLoader::PlanProjection(int layer, const std::vector<Module>& modules) {
  std::vector<Slice> parts;
  Matrix matrix{nullptr, options_.dtype, 0, 0};
  for (const Module module : modules) {
    Slice slice;
    slice.tensor = WeightOf(layer, module);
    const Range sharded = tp_.sharded_features(tp_rank_, module);
    slice.rows = IsRowParallel(module) ? Range{0, slice.tensor.rows} : sharded;
    slice.cols = IsRowParallel(module) ? sharded : Range{0, slice.tensor.cols};
    slice.dtype = options_.dtype;
    matrix.rows += slice.rows.size();
    matrix.cols = slice.cols.size();
    parts.push_back(std::move(slice));
  }
  ASSIGN_OR_RETURN(std::byte * data,
                   Allocate(static_cast<size_t>(matrix.rows) * matrix.cols, options_.dtype));
  matrix.data = data;
  for (Slice& slice : parts) {
    slice.out = data;
    data += static_cast<size_t>(slice.rows.size()) * slice.cols.size() * DTypeBytes(slice.dtype);
    slices_.push_back(std::move(slice));
  }
  return matrix;
}

absl::Status WeightLoader::PlanQkvBias(int layer, LayerWeights& weights) {
  if (!spec_.qkv_bias) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::byte * data, Allocate(weights.qkv.rows, DType::kF32));
  weights.qkv_bias = reinterpret_cast<const float*>(data);
  for (const Module module : {Module::kQ, Module::kK, Module::kV}) {
    Slice slice;
    slice.tensor = {ModulePath(layer, module) + ".bias", 1, spec_.out_features(module), true};
    slice.rows = {0, 1};
    slice.cols = tp_.sharded_features(tp_rank_, module);
    slice.out = data;
    data += slice.cols.size() * sizeof(float);
    slices_.push_back(std::move(slice));
  }
  return absl::OkStatus();
}

absl::StatusOr<Matrix> WeightLoader::PlanVocabulary(const std::string& name) {
  Slice slice;
  slice.tensor = {name, spec_.vocab_size, spec_.hidden_size};
  slice.rows = tp_.shards[tp_rank_].vocab;
  slice.cols = {0, spec_.hidden_size};
  slice.dtype = options_.dtype;
  ASSIGN_OR_RETURN(slice.out, Allocate(static_cast<size_t>(slice.rows.size()) * spec_.hidden_size,
                                       options_.dtype));
  const Matrix matrix{slice.out, options_.dtype, slice.rows.size(), spec_.hidden_size};
  slices_.push_back(std::move(slice));
  return matrix;
}

absl::StatusOr<const float*> WeightLoader::PlanNorm(const std::string& name, int n) {
  Slice slice;
  slice.tensor = {name, 1, n, true, true};
  slice.rows = {0, 1};
  slice.cols = {0, n};
  ASSIGN_OR_RETURN(slice.out, Allocate(n, DType::kF32));
  const float* data = reinterpret_cast<const float*>(slice.out);
  slices_.push_back(std::move(slice));
  return data;
}

// Enough that a small model's ranks hardly meet, and little beside the memory that its pages need
// to stay in until all have read them.
int WeightLoader::LayersAtOnce() const {
  uint64_t bytes = 0;
  for (const Module module : {Module::kO, Module::kDown}) {
    const TensorShape tensor = WeightOf(0, module);
    bytes += uint64_t{1} * tensor.rows * tensor.cols * source_.ElementBytes(tensor);
  }
  return static_cast<int>(std::max<uint64_t>(1, kSharedBytes / std::max<uint64_t>(1, bytes)));
}

void WeightLoader::BringShared(int first_layer, int layers) {
  for (int layer = first_layer; layer < std::min(first_layer + layers, spec_.num_layers); ++layer) {
    for (const Module module : {Module::kO, Module::kDown}) {
      const TensorShape tensor = WeightOf(layer, module);
      const SharedPart part =
          PartToBring(tp_, module, tensor.rows, options_.peers.on_host, tp_rank_);
      for (const Range& columns : part.columns) source_.Prefetch(tensor, part.rows, columns);
    }
  }
}

uint64_t WeightLoader::FileBytes(const Slice& slice) const {
  return static_cast<uint64_t>(slice.rows.size()) * slice.cols.size() *
         source_.ElementBytes(slice.tensor);
}

absl::Status WeightLoader::ReadAll() {
  uint64_t total = 0;
  for (const Slice& slice : slices_) total += FileBytes(slice);
  const LoadPeers& peers = options_.peers;
  const int layers = LayersAtOnce();
  if (peers.meet) BringShared(0, layers);
  for (size_t i = 0, layer = 0; i < slices_.size(); ++i) {
    // What the host's ranks share of these layers was asked for before they meet, so that none of
    // them finds a page missing and asks for it as well; what they share of the next is on its way
    // while these are read.
    if (peers.meet && layer < layer_begin_.size() && i == layer_begin_[layer]) {
      RETURN_IF_ERROR(peers.meet());
      layer += layers;
      BringShared(static_cast<int>(layer), layers);
    }
    RETURN_IF_ERROR(ReadSlice(slices_[i], total));
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::ReadSlice(const Slice& slice, uint64_t total_bytes) {
  const size_t row_bytes = slice.cols.size() * DTypeBytes(slice.dtype);
  const int step =
      std::max<int>(1, static_cast<int>(kStagedBytes / std::max<size_t>(row_bytes, 1)));
  std::byte* out = slice.out;
  for (int begin = slice.rows.begin; begin < slice.rows.end; begin += step) {
    Slice piece = slice;
    piece.rows = {begin, std::min(begin + step, slice.rows.end)};
    const size_t piece_bytes = piece.rows.size() * row_bytes;
    ASSIGN_OR_RETURN(std::byte * staged, device_.Stage(out, piece_bytes));
    source_.Read(piece.tensor, piece.rows, piece.cols, piece.dtype, staged);
    RETURN_IF_ERROR(device_.WriteBack());
    out += piece_bytes;
    weights_->bytes_read_ += FileBytes(piece);
    if (options_.progress) options_.progress(weights_->bytes_read_, total_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(
    const std::filesystem::path& model_dir, const ModelSpec& spec, const TpPlan& tp, int tp_rank,
    Device& device, const LoadOptions& options) {
  // One rank alone reads everything: the kernel's own readahead is the fastest.
  const FileUse use = tp.tp_size() == 1 ? FileUse::kWhole : FileUse::kParts;
  ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> source, OpenWeightFiles(model_dir, use));
  return WeightLoader(spec, tp, tp_rank, device, options, *source).Run();
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Dummy(const ModelSpec& spec,
                                                                  const TpPlan& tp, int tp_rank,
                                                                  Device& device, uint64_t seed,
                                                                  const LoadOptions& options) {
  const std::unique_ptr<WeightSource> source = MakeDummySource(spec, seed);
  return WeightLoader(spec, tp, tp_rank, device, options, *source).Run();
}

}  // namespace rootstock
