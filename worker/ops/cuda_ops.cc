#include "worker/ops/cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/activation/activation_cuda.h"
#include "kernels/collective/sum_norm_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rope/rope_cuda.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

cuda::Type TypeOf(DType type) {
  return type == DType::kBF16 ? cuda::Type::kBF16 : cuda::Type::kF32;
}

cuda::HeadShape HeadsOf(const AttentionShape& shape) {
  return {shape.num_heads, shape.num_kv_heads, shape.head_dim};
}

}  // namespace

CudaOps::CudaOps(CudaDevice& device, DType compute_type, const PagedMemory& memory,
                 const TokenSampler& sampler, std::shared_ptr<cuda::Linear> linear)
    : device_(device),
      compute_type_(compute_type),
      type_(TypeOf(compute_type)),
      memory_(memory),
      sampler_(sampler),
      linear_(std::move(linear)) {}

CudaOps::~CudaOps() { DropGraphs(); }

void CudaOps::Check(const std::string& what, const std::string& error) {
  if (error.empty() || !error_.ok()) return;
  error_ = MakeError(absl::StatusCode::kInternal, Reason::kInternal, what, "cuda", error);
}

absl::Status CudaOps::Enter(const StepSizes& sizes, int max_q_len) {
  error_ = absl::OkStatus();
  shrink_ = std::nullopt;
  expanded_ = false;
  sizes_ = sizes;
  arrays_ = step_->DeviceArrays(sizes);
  lora_.slab = memory_.slab;
  lora_.type = type_;
  lora_.num_groups = arrays_.num_groups;
  lora_.groups = arrays_.groups;
  lora_.tokens = arrays_.members;
  lora_.rows = arrays_.lora_rows;
  lora_.row_of = arrays_.row_of;
  lora_.tiles = arrays_.tiles;
  lora_.max_tiles = cuda::MaxLoraTiles(sizes.tokens, sizes.groups);
  lora_.max_groups = sizes.groups;
  lora_.max_members = sizes.members;
  lora_.max_lora_rank = max_lora_rank_;
  lora_.v = lora_v_.as<float>();
  lora_.v_floats = lora_v_.bytes() / sizeof(float);
  exchange_.num_members = arrays_.num_exchange;
  exchange_.members = arrays_.exchange;
  exchange_.max_members = sizes.members;
  exchange_.width = sizes.exchange;
  exchange_.num_layers = limits_.num_layers;
  exchange_.tp_size = limits_.tp_size;
  exchange_.tp_rank = limits_.tp_rank;
  exchange_.data = lora_exchange_.as<float>();
  cuda::AttentionBatch batch;
  batch.host = step_->host().attention();
  batch.device = arrays_.attention();
  batch.num_rows = sizes.rows;
  batch.num_tokens = sizes.tokens;
  batch.max_q_len = max_q_len;
  Check("attention", attention_->Plan(batch, step_->upload_stream()));
  RETURN_IF_ERROR(step_->FollowUploads());
  return error_;
}

absl::Status CudaOps::BeginStep(const StepView& step) {
  stats_ = {};
  StepSizes sizes{static_cast<int>(step.token_ids.size()),
                  static_cast<int>(step.rows.size()),
                  static_cast<int>(step.output_tokens.size()),
                  static_cast<int>(step.groups.size()),
                  0,
                  0};
  if (sizes.groups > 0) sizes.modules = 0;
  max_lora_rank_ = 0;
  for (const LoraGroup& group : step.groups) {
    max_lora_rank_ = std::max(max_lora_rank_, group.max_lora_rank);
    sizes.modules |= group.modules;
    const int tokens = static_cast<int>(group.tokens.size());
    sizes.members += tokens;
    sizes.exchange += tokens * ExchangeWidth(group, limits_.tp_size);
  }
  int max_q_len = 0;
  for (const SequenceView& row : step.rows) max_q_len = std::max(max_q_len, row.num_tokens);
  every_token_has_output_ = IsDecode(step, sizes);
  graph_ = every_token_has_output_ && !step.by_layer ? FindGraph(sizes) : nullptr;
  if (graph_ != nullptr) sizes = graph_->sizes;
  RETURN_IF_ERROR(step_->Fill(step, sizes, memory_.page_tokens));
  RETURN_IF_ERROR(Enter(sizes, max_q_len));
  device_.BeginSpan();  // behind the wait for the uploads: while it waits the device is idle
  return absl::OkStatus();
}

absl::Status CudaOps::Run(const std::function<absl::Status()>& forward) {
  if (graph_ == nullptr) return forward();
  stats_.lora_shrink.segments += sizes_.groups > 0 ? 1 : 0;
  return CudaStatus(cudaGraphLaunch(graph_->exec, device_.stream()), "step");
}

absl::StatusOr<OpsStepStats> CudaOps::EndStep() {
  RETURN_IF_ERROR(error_);
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "step"));
  RETURN_IF_ERROR(step_->MarkRead());
  return stats_;
}

cuda::PagedKv CudaOps::LayerKv(int layer, const AttentionShape& shape) const {
  const size_t layer_bytes = size_t{2} * memory_.page_tokens * shape.num_kv_heads * shape.head_dim *
                             DTypeBytes(compute_type_);
  return {memory_.slab, memory_.page_bytes, layer * layer_bytes,
          static_cast<int>(memory_.page_tokens)};
}

void CudaOps::Embed(const Matrix& table, int first_id, float* residual) {
  cuda::EmbedArgs args;
  args.type = TypeOf(table.dtype);
  args.table = table.data;
  args.first_id = first_id;
  args.table_rows = table.rows;
  args.ids = arrays_.token_ids;
  args.last_tokens = sampler_.last_tokens();
  args.tokens = sizes_.tokens;
  args.n = table.cols;
  args.out = residual;
  cuda::Embed(args, device_.stream());
}

void CudaOps::AddRmsNorm(float* residual, void* delta, const LoraDelta& lora, const float* weight,
                         float eps, int n, bool outputs_only, void* out) {
  cuda::AddNormArgs args;
  args.type = type_;
  args.residual = residual;
  args.delta = delta;
  args.weight = weight;
  args.eps = eps;
  args.n = n;
  args.tokens = sizes_.tokens;
  // Where every token has an output, in order, the kernel for all tokens does it: it shares B.
  const bool some = outputs_only && !every_token_has_output_;
  args.rows = some ? arrays_.output_tokens : nullptr;
  args.num_rows = some ? sizes_.outputs : 0;
  args.out = out;
  cuda::AddRmsNorm(args, lora_, LeftOf(lora), device_.stream());
}

bool CudaOps::SumAddRmsNorm(float* residual, const void* delta, const LoraDelta& lora,
                            const float* weight, float eps, int n, bool outputs_only, void* out) {
  const bool some = outputs_only && !every_token_has_output_;
  if (limits_.peers == nullptr || some || sizes_.tokens > cuda::kMostSumNormTokens ||
      !cuda::TakesSumNorm(*limits_.peers, type_, n)) {
    return false;
  }
  const cuda::SumNormArgs args{type_, residual, delta, weight, eps, n, sizes_.tokens, out};
  cuda::SumNormLora added;
  added.step = lora_;
  added.whole = LeftOf(lora);
  if (sizes_.exchange > 0) added.slice = TargetsOf(lora, LoraView::kExpandSlice);
  const cudaError_t error = cuda::SumAddRmsNorm(*limits_.peers, args, added, device_.stream());
  Check("sum and norm", error == cudaSuccess ? "" : cudaGetErrorString(error));
  return true;
}

cuda::LinearArgs CudaOps::ArgsOf(const void* x, int m, const Matrix& w, const float* bias,
                                 DType out_type, void* out) const {
  cuda::LinearArgs args;
  args.type = type_;
  args.x = x;
  args.m = m;
  args.w = w.data;
  args.n = w.rows;
  args.k = w.cols;
  args.bias = bias;
  args.out_type = TypeOf(out_type);
  args.out = out;
  return args;
}

void CudaOps::MatMul(const void* x, int m, const Matrix& w, const float* bias, DType out_type,
                     void* out) {
  const std::optional<PendingShrink> shrink = std::exchange(shrink_, std::nullopt);
  if (w.dtype != compute_type_) {
    return Check("linear", absl::StrCat("weights in ", DTypeName(w.dtype), ", activations in ",
                                        DTypeName(compute_type_)));
  }
  cuda::LinearArgs args = ArgsOf(x, m, w, bias, out_type, out);
  if (shrink.has_value() && linear_->Shrinks(args)) {
    const cuda::LinearShrink beside{lora_, shrink->targets, {}};
    args.shrink = &beside;
    ++stats_.lora_shrink.segments;
    return Check("linear", linear_->Run(args, device_.stream()));
  }
  if (shrink.has_value() && ExpandsInGemms()) {
    cuda::LinearExpand inside{lora_, shrink->expand};
    args.expand = &inside;
    if (linear_->Expands(args)) {
      ShrinkFor(*shrink, args, &inside);
      expanded_ = true;
      return Check("linear", linear_->Run(args, device_.stream()));
    }
    args.expand = nullptr;
  }
  args.shares = shrink.has_value() && linear_->LetsIn(args);
  if (shrink && !args.shares) RunShrink(*shrink, /*x_ready=*/false);
  Check("linear", linear_->Run(args, device_.stream()));
  if (args.shares) RunShrink(*shrink, /*x_ready=*/true);
}

void CudaOps::RunShrink(const PendingShrink& shrink, bool x_ready) {
  cuda::LoraShrink(lora_, shrink.targets, shrink.x, sizes_.tokens, device_.stream(), x_ready);
  ++stats_.lora_shrink.segments;
}

void CudaOps::ShrinkFor(const PendingShrink& shrink, const cuda::LinearArgs& args,
                        cuda::LinearExpand* inside) {
  const int sms = linear_->SparesSms(args, shrink.targets);
  if (sms == 0) return RunShrink(shrink, /*x_ready=*/false);
  inside->beside = true;
  cuda::LoraShrinkBeside(lora_, shrink.targets, shrink.x, sms, device_.stream());
  ++stats_.lora_shrink.segments;
}

void CudaOps::Linear(const void* x, const Matrix& w, const float* bias, void* out) {
  MatMul(x, sizes_.tokens, w, bias, compute_type_, out);
}

void CudaOps::Head(const void* x, const Matrix& w, float* logits) {
  MatMul(x, sizes_.outputs, w, nullptr, DType::kF32, logits);
}

void CudaOps::JoinLogits(std::span<const int> widths, const float* parts, float* logits) {
  const size_t stride = std::accumulate(widths.begin(), widths.end(), size_t{0}) * sizeof(float);
  const size_t rows = sizes_.outputs;
  for (const int width : widths) {
    const size_t bytes = width * sizeof(float);
    cudaMemcpy2DAsync(logits, stride, parts, bytes, bytes, rows, cudaMemcpyDeviceToDevice,
                      device_.stream());
    parts += rows * width;
    logits += width;
  }
}

void CudaOps::RopeWriteKv(int layer, const AttentionShape& shape, const RopeAndKv& rope,
                          const LoraDelta& lora, void* qkv) {
  cuda::RopeArgs args;
  args.type = type_;
  args.qkv = qkv;
  args.positions = arrays_.positions;
  args.pages = arrays_.token_pages;
  args.tokens = sizes_.tokens;
  args.heads = HeadsOf(shape);
  args.cos = rope.cos;
  args.sin = rope.sin;
  args.q_norm = rope.q_norm;
  args.k_norm = rope.k_norm;
  args.eps = rope.eps;
  args.kv = LayerKv(layer, shape);
  cuda::RopeWriteKv(args, lora_, LeftOf(lora), device_.stream());
}

void CudaOps::Attention(int layer, const AttentionShape& shape, const void* qkv, void* out) {
  Check("attention", attention_->Run(LayerKv(layer, shape), qkv, out, device_.stream()));
}

void CudaOps::SiluMul(void* gate_up, const LoraDelta& lora, int n, void* out) {
  cuda::SiluMulArgs args;
  args.type = type_;
  args.gate_up = gate_up;
  args.n = n;
  args.tokens = sizes_.tokens;
  args.out = out;
  cuda::SiluMul(args, lora_, LeftOf(lora), device_.stream());
}

}  // namespace rootstock
