#include "worker/runtime/startup.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

absl::StatusOr<DType> WeightType(const WorkerOptions& options) {
  if (options.dtype == "f32") return DType::kF32;
  if (options.dtype == "auto" && options.load_format != "dummy") return DTypeOfFiles(options.model);
  return DType::kBF16;
}

}  // namespace

absl::StatusOr<ModelPlan> PlanModel(const WorkerOptions& options, int tp_size, int ranks_on_host) {
  if (options.device == "cuda") {
    return InvalidField(Reason::kInvalidArgument, "device", "cuda",
                        "this build has no CUDA backend");
  }
  ModelPlan plan;
  ASSIGN_OR_RETURN(plan.spec, LoadModelSpec(options.model));
  ASSIGN_OR_RETURN(plan.tp, MakeTpPlan(plan.spec, tp_size));
  ASSIGN_OR_RETURN(const DType dtype, WeightType(options));
  plan.source = {options.model, options.load_format == "dummy", dtype};
  ASSIGN_OR_RETURN(plan.fingerprint, FingerprintOf(plan.source, plan.spec));
  ASSIGN_OR_RETURN(plan.geometry, MakeGeometry(plan.spec, plan.tp, LoadedModel::kComputeType,
                                               {options.page_tokens, options.num_pages,
                                                DefaultHostBudget(ranks_on_host)}));
  return plan;
}

void WritePorts(const std::string& file, const GroupInfo& info) {
  std::string text;
  for (size_t r = 0; r < info.ranks.size(); ++r) {
    if (r > 0) absl::StrAppend(&text, "tp_rank ", r, " ");
    absl::StrAppend(&text, "metrics ", info.ranks[r].metrics_port, "\n");
  }
  std::ofstream(file + ".new") << text;
  std::error_code error;
  std::filesystem::rename(file + ".new", file, error);
  if (error) LogWarning("port-file=", file, ": ", error.message());
}

std::string BuildId() {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (self) {
    self.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(buffer.data()),
                          static_cast<size_t>(self.gcount())));
  }
  return absl::StrCat(ROOTSTOCK_VERSION, "-", hash.Finish().Short());
}

}  // namespace rootstock
