// How rows are spread over blocks: by the vocabulary's size alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace rootstock::kernels::cuda {

struct RowSplit {
  int group = 1;            // blocks a row
  int tiles = 0;            // a block
  size_t shared_bytes = 0;  // of SampleRows, dynamic
  bool spills = false;      // a block's values do not fit its shared memory
};

// For the current device.
RowSplit SplitRow(int vocab);

// grid (group, num_rows), a cluster a row. `cluster` must live until the launch.
cudaLaunchConfig_t RowLaunch(const RowSplit& split, int num_rows, size_t shared_bytes,
                             cudaStream_t stream, cudaLaunchAttribute* cluster);

}  // namespace rootstock::kernels::cuda
