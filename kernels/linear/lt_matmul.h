// Linear layers by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/lt_table.h"

namespace rootstock::kernels::cuda {

// One algorithm for each (types, n, k, bias, range of m): the shipped table's, else that of
// cuBLASLt's heuristic. Neither measures anything: the same library on the same GPU kind gives the
// same answer. All m ≤ 64 are one range whose algorithm takes each of them, so that a row's bits do
// not depend on m there. Partial sums of a split k are f32 and added in a fixed order. Owns the
// handle and a workspace.
// *One stream at a time.*
class LtMatmul {
 public:
  static std::unique_ptr<LtMatmul> Create(std::string* error);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  // Does cuBLASLt's wish for 16-byte aligned rows hold?
  static bool Takes(const LinearArgs& args);

  // Takes(args) must hold. choice: 0 is the table's algorithm or, for shapes it does not know, the
  // heuristic's best; from 1 on the heuristic's answers, best first (past the last one is an
  // error). A bf16 output's bias is rounded to bf16. Empty, or the error.
  std::string Run(const LinearArgs& args, cudaStream_t stream, int choice = 0);
  // With that algorithm; an error if it can't do the shape.
  std::string RunAs(const LinearArgs& args, const LtAlgo& algo, cudaStream_t stream);
  // What Run takes for the shape; id 0: nothing does it.
  LtAlgo AlgoOf(const LinearArgs& args);
  // The heuristic's answers for the shape, best first.
  std::vector<LtAlgo> Answers(const LinearArgs& args);
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
  struct Wanted {
    int choice = 0;
    LtAlgo algo;  // id 0: by `choice`
    auto operator<=>(const Wanted&) const = default;
  };
  // type, out type, n, k, biased, largest m of the range
  using Key = std::tuple<Type, Type, int, int, bool, int, Wanted>;

  LtMatmul() = default;
  std::string RunWanted(const LinearArgs& args, const Wanted& wanted, cudaStream_t stream);
  std::string FindPlan(const LinearArgs& args, const Wanted& wanted, Plan** plan);
  std::string Describe(const LinearArgs& args, int largest_m, Plan* plan);
  std::string Pick(const LinearArgs& args, const Wanted& wanted, Plan* plan);
  std::string PickAlgo(const LinearArgs& args, const LtAlgo& algo, Plan* plan);
  std::string AskHeuristic(const LinearArgs& args, const Plan& plan,
                           std::vector<cublasLtMatmulAlgo_t>* algos);
  bool WorksForRange(const Plan& plan, const cublasLtMatmulAlgo_t& algo, int m);
  bool WorksFor(const Plan& plan, const cublasLtMatmulAlgo_t& algo, int m);

  cublasLtHandle_t handle_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace rootstock::kernels::cuda
