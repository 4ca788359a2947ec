#include "kernels/linear/linear_cuda.h"

#include "kernels/linear/lt_matmul.h"
#include "kernels/linear/plain_cuda.h"
#include "kernels/linear/prefill_cuda.h"
#include "kernels/linear/stream_cuda.h"

namespace rootstock::kernels::cuda {
namespace {

std::string Refuse(const LinearArgs& args, const char* why) {
  return "linear " + std::to_string(args.m) + " × " + std::to_string(args.n) + " × " +
         std::to_string(args.k) + ": " + why;
}

class LinearByShape : public Linear {
 public:
  LinearByShape(std::unique_ptr<LtMatmul> lt, std::unique_ptr<StreamLinear> stream,
                std::unique_ptr<PrefillLinear> prefill)
      : lt_(std::move(lt)), stream_(std::move(stream)), prefill_(std::move(prefill)) {}

  std::string Run(const LinearArgs& args, cudaStream_t stream) override {
    if (args.m < 0 || args.n < 1 || args.k < 1) return Refuse(args, "no such shape");
    if (args.m == 0) return "";
    if (args.x == nullptr || args.w == nullptr || args.out == nullptr) {
      return Refuse(args, "null tensor");
    }
    if (args.type == Type::kF32 && args.out_type != Type::kF32) {
      return Refuse(args, "f32 weights give f32");
    }
    if (args.gated && !Gates(args)) return Refuse(args, "has no gated form");
    if (args.shrink != nullptr && !args.gated && !Shrinks(args)) {
      return Refuse(args, "does no shrink on the way");
    }
    if (args.expand != nullptr && !TakesPrefill(args)) return Refuse(args, "adds no LoRA");
    if (TakesPrefill(args)) {
      const std::string error = prefill_->Run(args, stream);
      return error.empty() ? "" : Refuse(args, error.c_str());
    }
    if (stream_ != nullptr && StreamLinear::Takes(args)) {
      const std::string error = stream_->Run(args, stream);
      return error.empty() ? "" : Refuse(args, error.c_str());
    }
    if (LtMatmul::Takes(args)) {
      const std::string error = lt_->Run(args, stream);
      return error.empty() ? "" : Refuse(args, error.c_str());
    }
    const cudaError_t error = PlainLinear(args, stream);
    return error == cudaSuccess ? "" : Refuse(args, cudaGetErrorString(error));
  }

  bool Gates(const LinearArgs& args) const override {
    LinearArgs gated = args;
    gated.gated = true;
    return args.m > 0 &&
           ((stream_ != nullptr && StreamLinear::Gates(gated)) || TakesPrefill(gated));
  }

  bool Shrinks(const LinearArgs& args) const override {
    return args.m > 0 && stream_ != nullptr && StreamLinear::Shrinks(args);
  }

  bool Expands(const LinearArgs& args) const override {
    return args.m > 0 && args.expand != nullptr && TakesPrefill(args);
  }

  int SparesSms(const LinearArgs& args, const LoraTargets& shrink) const override {
    return prefill_ != nullptr ? PrefillLinear::SparesSms(args, shrink) : 0;
  }

  bool LetsIn(const LinearArgs& args) const override {
    return args.m > 0 && stream_ != nullptr && StreamLinear::Takes(args);
  }

 private:
  bool TakesPrefill(const LinearArgs& args) const {
    return prefill_ != nullptr && PrefillLinear::Takes(args) && PrefillLinear::Suits(args);
  }

  std::unique_ptr<LtMatmul> lt_;
  std::unique_ptr<StreamLinear> stream_;    // null before sm_90
  std::unique_ptr<PrefillLinear> prefill_;  // likewise
};

}  // namespace

std::unique_ptr<Linear> MakeLinear(std::string* error) {
  std::unique_ptr<LtMatmul> lt = LtMatmul::Create(error);
  if (lt == nullptr) return nullptr;
  std::unique_ptr<StreamLinear> stream = StreamLinear::Create(error);
  if (stream == nullptr && !error->empty()) return nullptr;
  std::unique_ptr<PrefillLinear> prefill = PrefillLinear::Create(error);
  if (prefill == nullptr && !error->empty()) return nullptr;
  return std::make_unique<LinearByShape>(std::move(lt), std::move(stream), std::move(prefill));
}

}  // namespace rootstock::kernels::cuda
