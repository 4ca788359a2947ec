// Whether a build's device code fits a GPU.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace rootstock {

// `built`: the value of CMAKE_CUDA_ARCHITECTURES, separated by commas ("80-real,90a-real"). A GPU
// of compute capability 9.0 takes sm_90a alone: kernels compiled for others run there too, but are
// not those that the host launches. FAILED_PRECONDITION/config_invalid names both sides.
absl::Status CheckArchitectures(std::string_view built, int major, int minor);

}  // namespace rootstock
