// Token ids that kernels read in place.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace rootstock {

// Two pieces of pinned memory: one fills while the other is read. *Step thread only.*
class PinnedIds {
 public:
  // Ids that Put takes at most.
  static constexpr size_t kCapacity = size_t{1} << 15;

  PinnedIds() = default;
  ~PinnedIds();
  PinnedIds(const PinnedIds&) = delete;
  PinnedIds& operator=(const PinnedIds&) = delete;

  // Takes the memory; once.
  absl::Status Create();
  // A copy of the ids, for what is enqueued on `stream` before the next Put; always one stream.
  absl::StatusOr<const int32_t*> Put(std::span<const int32_t> ids, cudaStream_t stream);

 private:
  struct Piece {
    int32_t* ids = nullptr;  // [kCapacity]
    size_t used = 0;
    cudaEvent_t read = nullptr;
  };
  std::array<Piece, 2> pieces_;
  int filling_ = 0;
};

}  // namespace rootstock
