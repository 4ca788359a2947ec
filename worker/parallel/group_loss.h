// Why a tp_rank takes its group for lost.
#pragma once

#include <array>
#include <string>

namespace rootstock {

struct GroupLoss {
  enum class Cause {
    kLateStep,     // a step on the GPU did not end
    kStalledWait,  // a kernel of ours waited in vain for another rank
    kNcclError,
    kLatePeer,  // another rank's host did not come to where it is awaited
  };
  Cause cause = Cause::kLateStep;
  std::string why;
  std::string nccl_code = "";  // one of kNcclCodes, of kNcclError
};

// NCCL's results, for a metric's label.
constexpr std::array<const char*, 7> kNcclCodes = {
    "unhandled_cuda_error", "system_error", "internal_error", "invalid_argument",
    "invalid_usage",        "remote_error", "other"};

}  // namespace rootstock
