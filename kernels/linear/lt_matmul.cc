#include "kernels/linear/lt_matmul.h"

#include <algorithm>
#include <array>

#include "kernels/linear/plain_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

constexpr size_t kBiasBytes = size_t{1} << 20;  // a bias rounded to bf16
constexpr size_t kLtBytes = size_t{64} << 20;
constexpr uint32_t kAlignment = 16;
constexpr int kMaxAnswers = 16;
constexpr int kInvariantRows = 64;

std::string What(cublasStatus_t status, const char* call) {
  return std::string(call) + ": " + cublasLtGetStatusString(status);
}

#define ROOTSTOCK_LT_CHECK(call)                                       \
  do {                                                                 \
    const cublasStatus_t status_ = (call);                             \
    if (status_ != CUBLAS_STATUS_SUCCESS) return What(status_, #call); \
  } while (false)

cudaDataType_t DataType(Type type) { return type == Type::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// m ≤ 64 is one range, the others are small enough that waves of tiles change little within one.
int RangeStep(int m) {
  if (m <= kInvariantRows) return kInvariantRows;
  return m <= 1024 ? 128 : m <= 4096 ? 512 : 1024;
}

// The largest m that shares m's algorithm.
int LargestM(int m) { return (m + RangeStep(m) - 1) / RangeStep(m) * RangeStep(m); }

template <typename T>
int Get(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t what) {
  T value = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, what, &value, sizeof(value), &written);
  return static_cast<int>(value);
}

LtAlgo IdsOf(const cublasLtMatmulAlgo_t& algo) {
  return {Get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID),
          Get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
          Get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
          Get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
          Get<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
          Get<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          Get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
          Get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
          Get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)};
}

cublasStatus_t SetIds(const LtAlgo& ids, cublasLtMatmulAlgo_t* algo) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t what, auto value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulAlgoConfigSetAttribute(algo, what, &value, sizeof(value));
  };
  set(CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<uint32_t>(ids.tile));
  set(CUBLASLT_ALGO_CONFIG_STAGES_ID, static_cast<uint32_t>(ids.stages));
  set(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, static_cast<uint16_t>(ids.inner_shape));
  set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<uint16_t>(ids.cluster));
  set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, static_cast<int32_t>(ids.split_k));
  set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, static_cast<uint32_t>(ids.reduction));
  set(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, static_cast<uint32_t>(ids.swizzle));
  set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<uint32_t>(ids.custom));
  return status;
}

bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; }

}  // namespace

std::unique_ptr<LtMatmul> LtMatmul::Create(std::string* error) {
  std::unique_ptr<LtMatmul> lt(new LtMatmul);
  const cublasStatus_t status = cublasLtCreate(&lt->handle_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    *error = What(status, "cublasLtCreate");
    return nullptr;
  }
  void* workspace = nullptr;
  const cudaError_t memory = cudaMalloc(&workspace, lt->workspace_bytes());
  lt->workspace_ = static_cast<std::byte*>(workspace);
  if (memory != cudaSuccess) {
    *error = std::string("no memory for cuBLASLt's workspace: ") + cudaGetErrorString(memory);
    return nullptr;
  }
  return lt;
}

LtMatmul::~LtMatmul() {
  plans_.clear();
  cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

bool LtMatmul::Takes(const LinearArgs& args) {
  return args.k * SizeOf(args.type) % kAlignment == 0 &&
         args.n * SizeOf(args.out_type) % kAlignment == 0 && Aligned(args.x) && Aligned(args.w) &&
         Aligned(args.out) && (args.bias == nullptr || Aligned(args.bias)) &&
         args.n * SizeOf(Type::kBF16) <= kBiasBytes;
}

size_t LtMatmul::workspace_bytes() const { return kBiasBytes + kLtBytes; }

std::string LtMatmul::Run(const LinearArgs& args, cudaStream_t stream, int choice) {
  return RunWanted(args, {choice, {}}, stream);
}

std::string LtMatmul::RunAs(const LinearArgs& args, const LtAlgo& algo, cudaStream_t stream) {
  return RunWanted(args, {0, algo}, stream);
}

LtAlgo LtMatmul::AlgoOf(const LinearArgs& args) {
  Plan* plan = nullptr;
  return FindPlan(args, {}, &plan).empty() ? IdsOf(plan->algo) : LtAlgo{};
}

std::vector<LtAlgo> LtMatmul::Answers(const LinearArgs& args) {
  std::vector<LtAlgo> answers;
  std::vector<cublasLtMatmulAlgo_t> algos;
  Plan plan;
  if (!Describe(args, LargestM(args.m), &plan).empty()) return answers;
  if (!AskHeuristic(args, plan, &algos).empty()) return answers;
  for (const cublasLtMatmulAlgo_t& algo : algos) answers.push_back(IdsOf(algo));
  return answers;
}

std::string LtMatmul::RunWanted(const LinearArgs& args, const Wanted& wanted, cudaStream_t stream) {
  Plan* plan = nullptr;
  std::string error = FindPlan(args, wanted, &plan);
  if (!error.empty()) return error;
  const void* bias = args.bias;
  if (args.bias != nullptr && args.out_type == Type::kBF16) {
    const cudaError_t rounded = RoundToBf16(args.bias, args.n, workspace_, stream);
    if (rounded != cudaSuccess) return cudaGetErrorString(rounded);
    bias = workspace_;
  }
  if (bias != nullptr) {
    ROOTSTOCK_LT_CHECK(cublasLtMatmulDescSetAttribute(
        plan->op.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
  }
  const uint64_t m = args.m;
  for (cublasLtMatrixLayout_t layout : {plan->x.get(), plan->out.get()}) {
    ROOTSTOCK_LT_CHECK(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &m, sizeof(m)));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  ROOTSTOCK_LT_CHECK(cublasLtMatmul(handle_, plan->op.get(), &one, args.w, plan->w.get(), args.x,
                                    plan->x.get(), &zero, args.out, plan->out.get(), args.out,
                                    plan->out.get(), &plan->algo, workspace_ + kBiasBytes, kLtBytes,
                                    stream));
  return "";
}

std::string LtMatmul::FindPlan(const LinearArgs& args, const Wanted& wanted, Plan** plan) {
  const Key key{args.type,        args.out_type, args.n, args.k, args.bias != nullptr,
                LargestM(args.m), wanted};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    Plan made;
    std::string error = Describe(args, LargestM(args.m), &made);
    if (error.empty()) error = Pick(args, wanted, &made);
    if (!error.empty()) return error;
    found = plans_.emplace(key, std::move(made)).first;
  }
  *plan = &found->second;
  return "";
}

// cuBLASLt's matrices are column-major: out [m, n] is its n × m matrix wᵀ · x with w: k × n, x: k ×
// m.
std::string LtMatmul::Describe(const LinearArgs& args, int largest_m, Plan* plan) {
  cublasLtMatmulDesc_t op = nullptr;
  ROOTSTOCK_LT_CHECK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan->op.reset(op);
  const auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) {
    return cublasLtMatmulDescSetAttribute(op, what, &value, sizeof(value));
  };
  ROOTSTOCK_LT_CHECK(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (args.bias != nullptr) {
    ROOTSTOCK_LT_CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    ROOTSTOCK_LT_CHECK(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, DataType(args.out_type)));
  }
  const auto layout = [](Layout& out, Type type, uint64_t rows, uint64_t cols) {
    cublasLtMatrixLayout_t made = nullptr;
    const cublasStatus_t status =
        cublasLtMatrixLayoutCreate(&made, DataType(type), rows, cols, rows);
    out.reset(made);
    return status;
  };
  ROOTSTOCK_LT_CHECK(layout(plan->w, args.type, args.k, args.n));
  ROOTSTOCK_LT_CHECK(layout(plan->x, args.type, args.k, largest_m));
  ROOTSTOCK_LT_CHECK(layout(plan->out, args.out_type, args.n, largest_m));
  return "";
}

std::string LtMatmul::Pick(const LinearArgs& args, const Wanted& wanted, Plan* plan) {
  if (wanted.algo.id != 0) return PickAlgo(args, wanted.algo, plan);
  if (wanted.choice == 0 && args.type == Type::kBF16 && args.out_type == Type::kBF16) {
    const LtAlgo* algo = FindLtAlgo(args.n, args.k, LargestM(args.m));
    if (algo != nullptr && PickAlgo(args, *algo, plan).empty()) return "";
  }
  std::vector<cublasLtMatmulAlgo_t> algos;
  const std::string error = AskHeuristic(args, *plan, &algos);
  if (!error.empty()) return error;
  const size_t index = std::max(wanted.choice - 1, 0);
  if (index >= algos.size()) return "cuBLASLt has no such algorithm for this shape";
  plan->algo = algos[index];
  return "";
}

std::string LtMatmul::PickAlgo(const LinearArgs& args, const LtAlgo& algo, Plan* plan) {
  const cudaDataType_t in = DataType(args.type);
  const cudaDataType_t out = DataType(args.out_type);
  ROOTSTOCK_LT_CHECK(cublasLtMatmulAlgoInit(handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out,
                                            out, algo.id, &plan->algo));
  ROOTSTOCK_LT_CHECK(SetIds(algo, &plan->algo));
  return WorksForRange(*plan, plan->algo, args.m) ? "" : "cuBLASLt can't use this algorithm here";
}

std::string LtMatmul::AskHeuristic(const LinearArgs& args, const Plan& plan,
                                   std::vector<cublasLtMatmulAlgo_t>* algos) {
  cublasLtMatmulPreference_t preference = nullptr;
  ROOTSTOCK_LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      owner(preference, cublasLtMatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value));
  };
  ROOTSTOCK_LT_CHECK(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kLtBytes}));
  ROOTSTOCK_LT_CHECK(
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  for (const auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    ROOTSTOCK_LT_CHECK(set(what, kAlignment));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMaxAnswers> answers;
  int count = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.op.get(), plan.w.get(), plan.x.get(), plan.out.get(), plan.out.get(),
      preference, kMaxAnswers, answers.data(), &count);
  for (int i = 0; asked == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (answers[i].state == CUBLAS_STATUS_SUCCESS && WorksForRange(plan, answers[i].algo, args.m)) {
      algos->push_back(answers[i].algo);
    }
  }
  return "";
}

// Every m of the range up to 64, else some of it.
bool LtMatmul::WorksForRange(const Plan& plan, const cublasLtMatmulAlgo_t& algo, int m) {
  const int largest = LargestM(m);
  const int smallest = largest - RangeStep(m) + 1;
  const int stride = largest == kInvariantRows ? 1 : (largest - smallest) / 8;
  for (int some = smallest; some <= largest; some += stride) {
    if (!WorksFor(plan, algo, some)) return false;
  }
  return true;
}

bool LtMatmul::WorksFor(const Plan& plan, const cublasLtMatmulAlgo_t& algo, int m) {
  const uint64_t cols = m;
  for (cublasLtMatrixLayout_t layout : {plan.x.get(), plan.out.get()}) {
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof(cols));
  }
  cublasLtMatmulHeuristicResult_t result = {};
  return cublasLtMatmulAlgoCheck(handle_, plan.op.get(), plan.w.get(), plan.x.get(), plan.out.get(),
                                 plan.out.get(), &algo, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kLtBytes;
}

}  // namespace rootstock::kernels::cuda
