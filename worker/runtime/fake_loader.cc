#include "worker/runtime/fake_loader.h"

#include <string>
#include <utility>

#include "common/base/status.h"
#include "worker/runtime/fake_model.h"

namespace rootstock {
namespace {

// Two layers of width 8, q adapted with lora_rank 1: the smallest adapter there is.
absl::StatusOr<std::unique_ptr<DeviceAdapter>> SmallAdapter(const LoadAdapter& load,
                                                            const PageGeometry& geometry,
                                                            Device& device) {
  ModelSpec spec;
  spec.num_layers = 1;
  spec.hidden_size = 8;
  spec.ffn_size = 8;
  spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = 8;
  spec.vocab_size = FakeModel::kVocab;
  const LoraSpec lora{{{0, Module::kQ, 1, 1.0f}}};
  ASSIGN_OR_RETURN(const TpPlan tp, MakeTpPlan(spec, 1));
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec, lora, tp, LoraSharding::kReplicated, DType::kF32,
                                         geometry.page_bytes));
  return DeviceAdapter::Create(layout, lora, 1, 0, geometry, load.pages, device);
}

}  // namespace

FakeLoader::FakeLoader(const PageGeometry& geometry, Device& device)
    : geometry_(geometry),
      device_(device),
      host_(*HostBlocks::Create(lane_, geometry.page_bytes, uint64_t{8} * geometry.page_bytes)) {}

void FakeLoader::Stage(CommandId id, const PrefetchAdapter&) {
  jobs_[id] = {};
  if (!hold) End(id);
}

void FakeLoader::Load(CommandId id, const LoadAdapter& load) {
  jobs_[id] = {load, std::nullopt};
  if (refused.contains(load.layout_id)) {
    return End(
        id, MakeError(absl::StatusCode::kInvalidArgument, Reason::kBaseMismatch, "load.layout_id",
                      std::to_string(load.layout_id), "refused for the test"));
  }
  if (!hold) End(id);
}

void FakeLoader::End(CommandId id, absl::Status outcome) {
  jobs_.at(id).outcome = std::move(outcome);
  if (done_) done_();
}

std::optional<absl::Status> FakeLoader::OutcomeOf(CommandId id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? std::nullopt : it->second.outcome;
}

absl::StatusOr<std::unique_ptr<DeviceAdapter>> FakeLoader::TakeEarly(CommandId id) {
  const Job& job = jobs_.at(id);
  if (job.outcome.has_value() && !job.outcome->ok()) return *job.outcome;
  return SmallAdapter(*job.load, geometry_, device_);
}

absl::Status FakeLoader::Follow(CommandId id, int layer) {
  followed.push_back(layer);
  return absl::OkStatus();
}

std::unique_ptr<DeviceAdapter> FakeLoader::Take(CommandId id) {
  auto adapter = SmallAdapter(*jobs_.at(id).load, geometry_, device_);
  return adapter.ok() ? *std::move(adapter) : nullptr;
}

}  // namespace rootstock
