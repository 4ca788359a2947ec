#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/linear/prefill_cuda.h"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/lora/lora_launch.h"

namespace rootstock::kernels::cuda {
namespace {

bool OnSixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
constexpr int Parts(int a, int b) { return (a + b - 1) / b; }

constexpr int kClusters = 66;  // that Suits counts on, of any GPU
constexpr int kGroup = 4;      // row tiles of a cluster that share w in the second cache

int RowTiles(const LinearArgs& args) { return Parts(args.m, kPrefillRows * kPrefillCluster); }
int ColumnTiles(const LinearArgs& args) { return Parts(args.n, kPrefillColumns); }

using Kernel = void (*)(const CUtensorMap, const CUtensorMap, const PrefillParams,
                        const PrefillExpand);

Kernel Pick(bool gated, bool lora) {
  if (gated) return lora ? PrefillKernel<true, true> : PrefillKernel<true, false>;
  return lora ? PrefillKernel<false, true> : PrefillKernel<false, false>;
}

// A row-major bf16 matrix [rows, k] in boxes of 64 k and 128 rows; what lies outside is 0.
bool Encode(void* encode, const void* data, int rows, int k, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[2] = {kPrefillBoxK, kPrefillRows};
  const cuuint32_t steps[2] = {1, 1};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(
             map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A half of a tile lies in one target.
bool OnHalves(const LoraTargets& targets, int n) {
  for (int i = 0; i < targets.count; ++i) {
    const int end = targets.column[i] + targets.features[i];
    if (targets.column[i] % kPrefillHalf != 0 || end % 8 != 0 ||
        (end % kPrefillHalf != 0 && end != n)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<PrefillLinear> PrefillLinear::Create(std::string* error) {
  const auto failed = [&](cudaError_t what) {
    if (what == cudaSuccess) return false;
    *error = std::string("prefill kernel: ") + cudaGetErrorString(what);
    return true;
  };
  int device = 0;
  int major = 0;
  if (failed(cudaGetDevice(&device)) ||
      failed(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) ||
      major != 9) {
    return nullptr;
  }
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (failed(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                              cudaEnableDefault, &found))) {
    return nullptr;
  }
  if (found != cudaDriverEntryPointSuccess) {
    *error = "the driver has no cuTensorMapEncodeTiled";
    return nullptr;
  }
  for (const bool gated : {false, true}) {
    for (const bool lora : {false, true}) {
      if (failed(cudaFuncSetAttribute(
              Pick(gated, lora), cudaFuncAttributeMaxDynamicSharedMemorySize, kPrefillShared))) {
        return nullptr;
      }
    }
  }
  return std::unique_ptr<PrefillLinear>(new PrefillLinear(encode));
}

bool PrefillLinear::Takes(const LinearArgs& args) {
  const int out_columns = args.gated ? args.n / 2 : args.n;
  return args.type == Type::kBF16 && args.out_type == Type::kBF16 && args.m > kDecodeTokens &&
         args.k % 8 == 0 && out_columns % 8 == 0 && args.shrink == nullptr && OnSixteen(args.x) &&
         OnSixteen(args.w) && OnSixteen(args.out) &&
         (!args.gated || (args.bias == nullptr && args.n % (2 * kPrefillHalf) == 0)) &&
         (args.expand == nullptr || OnHalves(args.expand->targets, args.n));
}

bool PrefillLinear::Suits(const LinearArgs& args) {
  if (!args.gated && args.expand == nullptr) return false;
  const int64_t tiles = int64_t{RowTiles(args)} * ColumnTiles(args);
  const int64_t rounds = (tiles + kClusters - 1) / kClusters;
  const double room = double{kPrefillCluster * kPrefillRows} * kPrefillColumns * kClusters * rounds;
  return static_cast<double>(args.m) * args.n / room >= (args.expand != nullptr ? 0.82 : 0.92);
}

// In cycles: a block takes 1024 a box, a shrinking SM reads 30 bytes. The first tiles of the others
// may wait for v as long as that costs less than a shrink before them.
int PrefillLinear::SparesSms(const LinearArgs& args, const LoraTargets& shrink) {
  constexpr int kMembers = 128;  // of a tile of the shrink
  constexpr double kStart = 4000, kWait = 1.3;
  const LoraStep& step = args.expand->step;
  const int clusters = NumSms() / kPrefillCluster;
  const int tiles = RowTiles(args) * ColumnTiles(args);
  const int shrinks = Parts(step.max_members, kMembers) + (step.max_groups - 1) / 2;
  const int sms = std::min(kPrefillCluster * ((clusters - tiles % clusters) % clusters),
                           Parts(shrinks, kPrefillCluster) * kPrefillCluster);
  if (sms == 0) return 0;
  const double rows = kMembers + static_cast<double>(shrink.count) * step.max_lora_rank;
  const double tile = 1024.0 * Parts(args.k, kPrefillBoxK);
  return kStart + Parts(shrinks, sms) * rows * args.k * 2 / 30 < kWait * tile ? sms : 0;
}

std::string PrefillLinear::Run(const LinearArgs& args, cudaStream_t stream) const {
  CUtensorMap w, x;
  if (!Encode(encode_, args.w, args.n, args.k, &w) ||
      !Encode(encode_, args.x, args.m, args.k, &x)) {
    return "no tensor map for this shape";
  }
  PrefillParams p;
  p.out = static_cast<__nv_bfloat16*>(args.out);
  p.bias = args.bias;
  p.m = args.m;
  p.n = args.n;
  p.boxes = Parts(args.k, kPrefillBoxK);
  p.row_tiles = RowTiles(args);
  p.column_tiles = ColumnTiles(args);
  p.group = kGroup;
  PrefillExpand expand;
  if (args.expand != nullptr) {
    expand = {args.expand->step, args.expand->targets};
    p.x_ready = args.expand->beside;
    p.lora_from = p.x_ready ? p.boxes - kLoraLast : kLoraFrom;
  }
  const int clusters = std::min(NumSms() / kPrefillCluster, p.row_tiles * p.column_tiles);
  const cudaError_t error = LaunchDependent(
      Pick(args.gated, args.expand != nullptr), dim3(clusters * kPrefillCluster),
      dim3(kPrefillThreads), kPrefillShared, stream, kPrefillCluster, w, x, p, expand);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace rootstock::kernels::cuda
