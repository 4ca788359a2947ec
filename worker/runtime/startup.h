// What a rank finds out, and tells, before it reads weights.
#pragma once

#include <string>

#include "common/plan/plan.h"
#include "worker/memory/slab.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_options.h"

namespace rootstock {

struct ModelPlan {
  ModelSource source;
  ModelSpec spec;
  TpPlan tp;
  Digest fingerprint;
  bool cuda = false;
  DType compute_type = DType::kF32;  // of activations, KV and adapters
  PageGeometry geometry;             // what this rank could take; num_pages 0: what fits, see
                                     // LoadedModel::Create
};

// This rank's place on its host.
struct HostPlace {
  int local_rank = 0;
  int local_size = 1;
};

// kInvalidArgument for a model that is not served, a tp_size that it can't be split into, or a
// device without the memory, with the numbers; FAILED_PRECONDITION for a device that this build or
// host has not.
absl::StatusOr<ModelPlan> PlanModel(const WorkerOptions& options, int tp_size,
                                    const HostPlace& place);

// What --dtype auto makes of the files' type. f16, which no kernel takes, becomes f32 on the host's
// processor, where that is exact and costs memory alone, and bf16 on a GPU, whose f32 is many times
// slower.
DType AutoWeightType(DType files, bool cuda);

// Of the plan's device. threads: of every parallel loop on the host's processor.
absl::StatusOr<Backend> MakeBackend(const ModelPlan& plan, const HostPlace& place, int threads);

// Of this rank: what --host-cache-bytes says, or by default what DefaultHostCacheBytes does.
uint64_t HostCacheBytes(const WorkerOptions& options, const HostPlace& place);

// "metrics PORT" of tp_rank 0, "tp_rank R metrics PORT" of the others; complete or absent.
void WritePorts(const std::string& file, const GroupInfo& info);

// Version and a hash of this binary: equal when the builds are.
std::string BuildId();

}  // namespace rootstock
