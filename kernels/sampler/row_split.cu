#include "kernels/sampler/row_scan.cuh"
#include "kernels/sampler/row_split.h"

namespace rootstock::kernels::cuda {
namespace {

int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace

RowSplit SplitRow(int vocab) {
  RowSplit split;
  split.group = DeviceAttribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? kMaxGroup : 1;
  const int tiles = (vocab + kTile - 1) / kTile;
  split.tiles = (tiles + split.group - 1) / split.group;
  const size_t sums = static_cast<size_t>(split.tiles + 1) / 2 * 2 * sizeof(double);
  const size_t values = static_cast<size_t>(split.tiles) * kTile * sizeof(float);
  const size_t limit = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  split.spills = sums + values + sizeof(RowShared) > limit;
  split.shared_bytes = split.spills ? sums : sums + values;
  return split;
}

cudaLaunchConfig_t RowLaunch(const RowSplit& split, int num_rows, size_t shared_bytes,
                             cudaStream_t stream, cudaLaunchAttribute* cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {static_cast<unsigned>(split.group), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(split.group, num_rows);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = cluster;
  config.numAttrs = split.group > 1 ? 1 : 0;
  return config;
}

}  // namespace rootstock::kernels::cuda
