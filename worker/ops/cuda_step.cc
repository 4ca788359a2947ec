#include "worker/ops/cuda_step.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/lora/lora_rows.h"
#include "kernels/upload/upload_cuda.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr size_t kAlignment = 16;

size_t BytesOf(const StepCapacity& capacity) {
  return StepArrays::At(nullptr, capacity.sizes).fixed_bytes + sizeof(int32_t) * capacity.pages;
}

int MaxTiles(const StepSizes& sizes) { return cuda::MaxLoraTiles(sizes.tokens, sizes.groups); }

}  // namespace

StepArrays StepArrays::At(std::byte* base, const StepSizes& sizes) {
  size_t at = 0;
  const auto take = [&]<typename T>(T*& array, size_t count) {
    array = reinterpret_cast<T*>(base + at);
    at = (at + count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  };
  StepArrays out;
  take(out.num_groups, 1);
  take(out.token_ids, sizes.tokens);
  take(out.positions, sizes.tokens);
  take(out.token_pages, sizes.tokens);
  take(out.q_begin, sizes.rows + 1);
  take(out.kv_len, sizes.rows);
  take(out.page_begin, sizes.rows + 1);
  take(out.output_tokens, sizes.outputs);
  if (sizes.groups > 0) {
    take(out.groups, sizes.groups);
    take(out.members, sizes.members);
    take(out.lora_rows, sizes.tokens + sizes.members);
    take(out.row_of, sizes.tokens);
    take(out.tiles, MaxTiles(sizes));
  }
  if (sizes.exchange > 0) {
    take(out.num_exchange, 1);
    take(out.exchange, sizes.members);
  }
  out.fixed_bytes = at;
  take(out.page_ids, 0);
  return out;
}

absl::StatusOr<std::unique_ptr<CudaStep>> CudaStep::Create(CudaDevice& device,
                                                           const StepCapacity& capacity) {
  std::unique_ptr<CudaStep> step(new CudaStep(device));
  step->capacity_ = capacity;
  const size_t bytes = BytesOf(capacity);
  ASSIGN_OR_RETURN(step->buffer_, device.Allocate(bytes, "step data"));
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&step->upload_stream_, cudaStreamNonBlocking), "stream"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&step->was_read_, cudaEventDisableTiming), "event"));
  RETURN_IF_ERROR(step->MarkRead());  // behind the allocation
  for (int i = 0; i < kImages; ++i) {
    void* image = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&image, bytes), "step data"));
    step->images_[i] = static_cast<std::byte*>(image);
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&step->uploaded_[i], cudaEventDisableTiming), "event"));
  }
  return step;
}

CudaStep::~CudaStep() {
  for (int i = 0; i < kImages; ++i) {
    if (uploaded_[i] != nullptr) cudaEventSynchronize(uploaded_[i]);
    if (uploaded_[i] != nullptr) cudaEventDestroy(uploaded_[i]);
    if (images_[i] != nullptr) cudaFreeHost(images_[i]);
  }
  if (was_read_ != nullptr) cudaEventDestroy(was_read_);
  if (upload_stream_ != nullptr) cudaStreamDestroy(upload_stream_);
}

absl::Status CudaStep::MarkRead() {
  return CudaStatus(cudaEventRecord(was_read_, device_.stream()), "step data");
}

absl::Status CudaStep::Fill(const StepView& step, const StepSizes& sizes, uint32_t page_tokens) {
  if (sizes.groups > capacity_.sizes.groups || sizes.members > capacity_.sizes.members) {
    return MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "adapters",
                     absl::StrCat(sizes.groups),
                     absl::StrCat("on ", sizes.members, " tokens in all; a step holds ",
                                  capacity_.sizes.groups, " on ", capacity_.sizes.members));
  }
  image_ = (image_ + 1) % kImages;
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(uploaded_[image_]), "step data"));
  host_ = StepArrays::At(images_[image_], sizes);
  std::memset(images_[image_], 0, host_.fixed_bytes);
  int pages = 0;
  RETURN_IF_ERROR(FillRows(step, sizes, page_tokens, &pages));
  if (sizes.groups > 0) FillLora(step, sizes);
  if (sizes.exchange > 0) FillExchange(step);
  RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(upload_stream_, was_read_), "step data"));
  return CudaStatus(cuda::Upload(buffer_.data(), images_[image_],
                                 host_.fixed_bytes + pages * sizeof(int32_t), upload_stream_),
                    "step data");
}

absl::Status CudaStep::FollowUploads() {
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(uploaded_[image_], upload_stream_), "step data"));
  return CudaStatus(cudaStreamWaitEvent(device_.stream(), uploaded_[image_]), "step data");
}

absl::Status CudaStep::FillRows(const StepView& step, const StepSizes& sizes, uint32_t page_tokens,
                                int* pages) {
  std::copy(step.token_ids.begin(), step.token_ids.end(), host_.token_ids);
  std::copy(step.positions.begin(), step.positions.end(), host_.positions);
  std::copy(step.output_tokens.begin(), step.output_tokens.end(), host_.output_tokens);
  const int rows = static_cast<int>(step.rows.size());
  for (int r = 0; r < rows; ++r) {
    const SequenceView& row = step.rows[r];
    const int length = row.start_position + row.num_tokens;
    const int count = (length + static_cast<int>(page_tokens) - 1) / static_cast<int>(page_tokens);
    if (*pages + count > capacity_.pages) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "pages",
          absl::StrCat(*pages + count),
          absl::StrCat("of the rows of one step; there is room for ", capacity_.pages));
    }
    for (int i = 0; i < row.num_tokens; ++i) {
      host_.token_pages[row.begin + i] = row.pages[(row.start_position + i) / page_tokens];
    }
    host_.q_begin[r] = row.begin;
    host_.kv_len[r] = length;
    host_.page_begin[r] = *pages;
    std::copy_n(row.pages.begin(), count, host_.page_ids + *pages);
    *pages += count;
  }
  // Pads: one token each, in decode steps alone.
  for (int r = rows; r <= sizes.rows; ++r) {
    host_.q_begin[r] = static_cast<int>(step.token_ids.size()) + r - rows;
    host_.page_begin[r] = *pages;
  }
  for (int i = static_cast<int>(step.output_tokens.size()); i < sizes.outputs; ++i) {
    host_.output_tokens[i] = i;
  }
  return absl::OkStatus();
}

void CudaStep::FillLora(const StepView& step, const StepSizes& sizes) {
  scales_.clear();
  int member = 0;
  for (size_t g = 0; g < step.groups.size(); ++g) {
    const LoraGroup& group = step.groups[g];
    static_assert(sizeof(LoraSite) == sizeof(cuda::LoraSiteEntry));
    host_.groups[g] = {reinterpret_cast<const cuda::LoraSiteEntry*>(group.device_sites), member,
                       static_cast<int32_t>(group.tokens.size())};
    std::copy(group.tokens.begin(), group.tokens.end(), host_.members + member);
    scales_.insert(scales_.end(), group.scales.begin(), group.scales.end());
    member += static_cast<int>(group.tokens.size());
  }
  *host_.num_groups = static_cast<int32_t>(step.groups.size());
  cuda::FillLoraRows(host_.groups, *host_.num_groups, host_.members, scales_.data(), sizes.tokens,
                     MaxTiles(sizes), host_.lora_rows, host_.row_of, host_.tiles);
}

// Places follow from the plan, so they are the same on every rank.
void CudaStep::FillExchange(const StepView& step) {
  int member = 0, count = 0, begin = 0;
  for (size_t g = 0; g < step.groups.size(); ++g) {
    const int width = ExchangeWidth(step.groups[g], capacity_.tp_size);
    for (size_t i = 0; i < step.groups[g].tokens.size(); ++i, ++member) {
      if (width == 0) continue;
      host_.exchange[count++] = {host_.groups[g].sites, member, begin, width};
      begin += width;
    }
  }
  *host_.num_exchange = count;
}

}  // namespace rootstock
