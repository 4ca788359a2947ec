// NCCL's functions, each looked up at its first call: the same program starts on hosts without
// NCCL. Same signatures as nccl.h.
#include <dlfcn.h>
#include <nccl.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/make_communicator.h"

namespace {

void* Library() {
  static void* const library = [] {
    void* found = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return found != nullptr ? found : dlopen(ROOTSTOCK_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

template <typename Function>
Function Find(const char* name) {
  return Library() == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(Library(), name));
}

}  // namespace

// Without the library every function says that the system failed.
#define ROOTSTOCK_NCCL_FUNCTION(name, parameters, arguments)   \
  ncclResult_t name parameters {                               \
    static const auto function = Find<decltype(&name)>(#name); \
    if (function == nullptr) return ncclSystemError;           \
    return function arguments;                                 \
  }
#define ROOTSTOCK_NCCL_TEXT(name, parameters, arguments)                              \
  const char* name parameters {                                                       \
    static const auto function = Find<decltype(&name)>(#name);                        \
    return function == nullptr ? "libnccl.so.2 can't be loaded" : function arguments; \
  }

extern "C" {

ROOTSTOCK_NCCL_TEXT(ncclGetErrorString, (ncclResult_t result), (result))
ROOTSTOCK_NCCL_TEXT(ncclGetLastError, (ncclComm_t comm), (comm))
ROOTSTOCK_NCCL_FUNCTION(ncclGetVersion, (int* version), (version))
ROOTSTOCK_NCCL_FUNCTION(ncclGetUniqueId, (ncclUniqueId * id), (id))
ROOTSTOCK_NCCL_FUNCTION(ncclCommInitRankConfig,
                        (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank,
                         ncclConfig_t* config),
                        (comm, ranks, id, rank, config))
ROOTSTOCK_NCCL_FUNCTION(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* result),
                        (comm, result))
ROOTSTOCK_NCCL_FUNCTION(ncclCommAbort, (ncclComm_t comm), (comm))
ROOTSTOCK_NCCL_FUNCTION(ncclGroupStart, (), ())
ROOTSTOCK_NCCL_FUNCTION(ncclGroupEnd, (), ())
ROOTSTOCK_NCCL_FUNCTION(ncclAllReduce,
                        (const void* in, void* out, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream),
                        (in, out, count, type, op, comm, stream))
ROOTSTOCK_NCCL_FUNCTION(ncclBroadcast,
                        (const void* in, void* out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream),
                        (in, out, count, type, root, comm, stream))
ROOTSTOCK_NCCL_FUNCTION(ncclSend,
                        (const void* in, size_t count, ncclDataType_t type, int peer,
                         ncclComm_t comm, cudaStream_t stream),
                        (in, count, type, peer, comm, stream))
ROOTSTOCK_NCCL_FUNCTION(ncclRecv,
                        (void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream),
                        (out, count, type, peer, comm, stream))

}  // extern "C"

namespace rootstock {

absl::Status CanJoinGpus() {
  int version = 0;
  const ncclResult_t found = ncclGetVersion(&version);
  if (found == ncclSuccess) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "device",
                   "cuda",
                   absl::StrCat("several ranks on GPUs need NCCL: ", ncclGetErrorString(found)));
}

std::string NcclVersion() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "none";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace rootstock
