// Linear layers by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/linear/linear_cuda.h"

namespace rootstock::kernels::cuda {

// One algorithm for each (types, n, k, bias, range of m), read from cuBLASLt's heuristic, which
// measures nothing: the same library on the same GPU kind gives the same answer. All m ≤ 64 are one
// range whose algorithm takes each of them, so that a row's bits do not depend on m there. Partial
// sums of a split k are f32 and added in a fixed order. Owns the handle and a workspace.
// *One stream at a time.*
class LtMatmul {
 public:
  static std::unique_ptr<LtMatmul> Create(std::string* error);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Does cuBLASLt's wish for 16-byte aligned rows hold?
  static bool Takes(const LinearArgs& args);

  // Takes(args) must hold. choice: which of the heuristic's answers, best first; past the last one
  // is an error. A bf16 output's bias is rounded to bf16. Empty, or the error.
  std::string Run(const LinearArgs& args, cudaStream_t stream, int choice = 0);
  size_t workspace_bytes() const;

 private:
  template <auto destroy>
  struct Destroy {
    void operator()(auto* p) const { destroy(p); }
  };
  using Op = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  struct Plan {
    Op op;
    Layout w, x, out;
    cublasLtMatmulAlgo_t algo = {};
  };
  // type, out type, n, k, biased, largest m of the range, choice
  using Key = std::tuple<Type, Type, int, int, bool, int, int>;

  LtMatmul() = default;
  std::string FindPlan(const LinearArgs& args, int choice, Plan** plan);
  std::string MakePlan(const LinearArgs& args, int largest_m, int choice, Plan* plan);
  std::string Describe(const LinearArgs& args, int largest_m, Plan* plan);
  std::string Pick(int smallest_m, int largest_m, int choice, Plan* plan);
  bool WorksFor(const Plan& plan, const cublasLtMatmulAlgo_t& algo, int m);

  cublasLtHandle_t handle_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace rootstock::kernels::cuda
