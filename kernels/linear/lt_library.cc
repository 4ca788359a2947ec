// cuBLASLt's functions, each looked up at its first call. Linked in the usual way the library would
// be loaded with the program: its 94 KB of thread-local memory come out of every thread's stack,
// which breaks libraries that ask for small stacks, and a program for hosts without a GPU would not
// start. Same signatures as cublasLt.h.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

namespace {

constexpr char kLibrary[] = ROOTSTOCK_CUBLASLT;  // libcublasLt.so.MAJOR

void* Library() {
  static void* const library = [] {
    void* found = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (found != nullptr) return found;
    return dlopen((ROOTSTOCK_CUDA_LIBRARIES "/" + std::string(kLibrary)).c_str(),
                  RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

template <typename Function>
Function Find(const char* name) {
  return Library() == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(Library(), name));
}

}  // namespace

// Without the library every function says NOT_INITIALIZED.
#define ROOTSTOCK_LT_FUNCTION(name, parameters, arguments)         \
  cublasStatus_t name parameters {                                 \
    static const auto function = Find<decltype(&name)>(#name);     \
    if (function == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED; \
    return function arguments;                                     \
  }

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static const auto function = Find<decltype(&cublasLtGetStatusString)>("cublasLtGetStatusString");
  return function == nullptr ? ROOTSTOCK_CUBLASLT " can't be loaded" : function(status);
}

ROOTSTOCK_LT_FUNCTION(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
ROOTSTOCK_LT_FUNCTION(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmul,
                      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                       const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                       cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                       cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                       const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes,
                       cudaStream_t stream),
                      (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                       d_layout, algo, workspace, bytes, stream))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulAlgoInit,
                      (cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                       cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                       int id, cublasLtMatmulAlgo_t* algo),
                      (handle, compute, scale, a, b, c, d, id, algo))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute,
                      (const cublasLtMatmulAlgo_t* algo,
                       cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                       size_t* written),
                      (algo, attribute, value, bytes, written))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulAlgoConfigSetAttribute,
                      (cublasLtMatmulAlgo_t * algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                       const void* value, size_t bytes),
                      (algo, attribute, value, bytes))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulAlgoCheck,
                      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result),
                      (handle, desc, a, b, c, d, algo, result))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulAlgoGetHeuristic,
                      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                       cublasLtMatmulPreference_t preference, int wanted,
                       cublasLtMatmulHeuristicResult_t results[], int* returned),
                      (handle, desc, a, b, c, d, preference, wanted, results, returned))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulDescCreate,
                      (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute,
                       cudaDataType_t scale),
                      (desc, compute, scale))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulDescSetAttribute,
                      (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                       const void* value, size_t bytes),
                      (desc, attribute, value, bytes))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
                      (preference))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
                      (preference))
ROOTSTOCK_LT_FUNCTION(cublasLtMatmulPreferenceSetAttribute,
                      (cublasLtMatmulPreference_t preference,
                       cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                       size_t bytes),
                      (preference, attribute, value, bytes))
ROOTSTOCK_LT_FUNCTION(cublasLtMatrixLayoutCreate,
                      (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows,
                       uint64_t cols, int64_t stride),
                      (layout, type, rows, cols, stride))
ROOTSTOCK_LT_FUNCTION(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
ROOTSTOCK_LT_FUNCTION(cublasLtMatrixLayoutSetAttribute,
                      (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                       const void* value, size_t bytes),
                      (layout, attribute, value, bytes))

}  // extern "C"
