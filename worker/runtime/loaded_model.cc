#include "worker/runtime/loaded_model.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/safetensors/safetensors.h"
#include "worker/weights/weight_source.h"

namespace rootstock {
namespace {

constexpr uint64_t kDummySeed = 1;
constexpr char kEmbedding[] = "model.embed_tokens.weight";

// A line every two seconds, and one at the end.
std::function<void(uint64_t, uint64_t)> LogProgress() {
  using Clock = std::chrono::steady_clock;
  return [told = Clock::now()](uint64_t done, uint64_t total) mutable {
    if (done < total && Clock::now() - told < std::chrono::seconds(2)) return;
    told = Clock::now();
    LogInfo("weights: ", done >> 20, " of ", total >> 20, " MiB");
  };
}

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const ModelSource& source,
                                                          const ModelSpec& spec, const TpPlan& tp,
                                                          int tp_rank, Device& device) {
  const LoadOptions options{source.dtype, LogProgress()};
  if (source.dummy) return ModelWeights::Dummy(spec, tp, tp_rank, device, kDummySeed, options);
  return ModelWeights::Load(source.dir, spec, tp, tp_rank, device, options);
}

}  // namespace

absl::StatusOr<DType> DTypeOfFiles(const std::filesystem::path& model_dir) {
  ASSIGN_OR_RETURN(const ShardedSafetensors files,
                   ShardedSafetensors::Open(model_dir, FileUse::kParts));
  const TensorView* embedding = files.Find(kEmbedding);
  if (embedding == nullptr) {
    return InvalidField(Reason::kModelInvalid, "tensor", kEmbedding, "is missing");
  }
  return embedding->dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<Digest> FingerprintOf(const ModelSource& source, const ModelSpec& spec) {
  if (source.dummy) return MakeDummySource(spec, kDummySeed)->Fingerprint();
  ASSIGN_OR_RETURN(const auto files, OpenWeightFiles(source.dir, FileUse::kParts));
  return files->Fingerprint();
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Create(
    const ModelSource& source, const ModelSpec& spec, const TpPlan& tp, Backend backend,
    const PageGeometry& geometry, Communicator& communicator, PathOf path_of) {
  const int tp_rank = communicator.rank();
  std::unique_ptr<LoadedModel> out(new LoadedModel(spec, tp, tp_rank, std::move(backend)));
  out->info_ = {spec.vocab_size, spec.max_position, out->backend_.compute_type, geometry};
  out->path_of_ = std::move(path_of);
  out->communicator_ = &communicator;
  ASSIGN_OR_RETURN(out->weights_, LoadWeights(source, spec, tp, tp_rank, *out->backend_.device));
  ASSIGN_OR_RETURN(out->slab_, Slab::Create(*out->backend_.device, geometry));
  out->ops_ =
      out->backend_.make_ops({out->slab_->data(), geometry.page_bytes, geometry.page_tokens});
  return out;
}

absl::Status LoadedModel::Prepare(const ModelLimits& limits, int max_logprobs) {
  RETURN_IF_ERROR(backend_.sampler->Prepare(
      {limits.num_slots, limits.max_outputs, max_logprobs, spec_.vocab_size}));
  if (model_ != nullptr && limits == limits_) return absl::OkStatus();
  model_.reset();
  const ModelParts parts{weights_.get(), backend_.device.get(), ops_.get(), slab_.get(),
                         communicator_};
  ASSIGN_OR_RETURN(model_, Model::Create(spec_, tp_, tp_rank_, parts, limits));
  limits_ = limits;
  return absl::OkStatus();
}

absl::StatusOr<const float*> LoadedModel::Forward(const ForwardBatch& batch) {
  return model_->Forward(batch);
}

absl::StatusOr<std::unique_ptr<DeviceAdapter>> LoadedModel::Load(const LoadAdapter& load) {
  const std::filesystem::path path = path_of_(load.digest);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kIoError, "load.digest",
                     load.digest.Short(), "its content is not on this node; prefetch it first");
  }
  ASSIGN_OR_RETURN(const CanonicalAdapter content, CanonicalAdapter::Open(path, spec_));
  const PageGeometry& geometry = info_.geometry;
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, content.spec(), tp_, load.sharding,
                                         info_.compute_dtype, geometry.page_bytes));
  if (layout.id() != load.layout_id) {
    return InvalidField(Reason::kBaseMismatch, "load.layout_id", absl::StrCat(load.layout_id),
                        absl::StrCat("this group lays the adapter out as ", layout.id()));
  }
  ASSIGN_OR_RETURN(auto adapter,
                   DeviceAdapter::Create(layout, content.spec(), spec_.num_layers, tp_rank_,
                                         geometry, load.pages, *backend_.device));
  RETURN_IF_ERROR(slab_->WriteAdapter(content, layout, tp_rank_, load.pages, *backend_.device));
  return adapter;
}

}  // namespace rootstock
