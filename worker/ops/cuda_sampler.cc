#include "worker/ops/cuda_sampler.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

namespace cuda = kernels::cuda;

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool IsPlainGreedy(const cuda::SampleRow& row) {
  return row.temperature == 0.0f && row.counts < 0 && row.adjust_begin == row.adjust_end &&
         row.num_logprobs < 0 && row.given < 0;
}

}  // namespace

CudaSampler::~CudaSampler() { FreeFlights(); }

void CudaSampler::FreeFlights() {
  for (Flight& flight : flights_) {
    if (flight.done != nullptr) cudaEventSynchronize(flight.done);
    if (flight.done != nullptr) cudaEventDestroy(flight.done);
    if (flight.in != nullptr) cudaFreeHost(flight.in);
    if (flight.out != nullptr) cudaFreeHost(flight.out);
    flight = {};
  }
  under_way_.clear();
}

absl::Status CudaSampler::Refit(DeviceBuffer& buffer, size_t bytes, const std::string& purpose) {
  if (buffer.bytes() == bytes) return absl::OkStatus();
  buffer = {};
  ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, purpose));
  return absl::OkStatus();
}

absl::Status CudaSampler::Prepare(const SamplerLimits& limits) {
  FreeFlights();
  limits_ = limits;
  device_top_ = std::min(limits.max_logprobs, cuda::kMaxTopLogprobs);
  RETURN_IF_ERROR(count_ids_.Create());
  error_ = absl::OkStatus();
  const size_t slots = limits.num_slots, vocab = limits.vocab;
  // Recorded steps hold its address: it moves only with num_slots, and then they are recorded anew.
  if (last_tokens_.bytes() < slots * sizeof(int32_t)) {
    RETURN_IF_ERROR(Refit(last_tokens_, slots * sizeof(int32_t), "sampler"));
  }
  RETURN_IF_ERROR(Refit(counts_, slots * vocab * sizeof(uint32_t), "token counts"));
  counted_.assign(slots, false);
  RETURN_IF_ERROR(
      Refit(scratch_, cuda::SampleScratchBytes(limits.max_orders, limits.vocab), "sampler"));
  RETURN_IF_ERROR(Refit(results_, ResultBytes(), "sampler"));
  for (Flight& flight : flights_) {
    void* out = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&out, ResultBytes()), "sampler"));
    flight.out = static_cast<std::byte*>(out);
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&flight.done, cudaEventDisableTiming), "sampler"));
    RETURN_IF_ERROR(MakeInput(flight, InputRowBytes(limits.max_orders)));
  }
  return absl::OkStatus();
}

size_t CudaSampler::InputRowBytes(size_t rows) { return Aligned(rows * sizeof(cuda::SampleRow)); }

// It waits for the device: only lists longer than any before need it in a step.
absl::Status CudaSampler::MakeInput(Flight& flight, size_t bytes) {
  if (flight.in != nullptr) cudaFreeHost(flight.in);
  flight.in = nullptr;
  flight.in_bytes = 0;
  void* in = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&in, bytes), "sampler"));
  flight.in = static_cast<std::byte*>(in);
  flight.in_bytes = bytes;
  return absl::OkStatus();
}

uint32_t* CudaSampler::CountsOf(uint32_t slot) const {
  return counts_.as<uint32_t>() + static_cast<size_t>(slot) * limits_.vocab;
}

void CudaSampler::Check(absl::Status status) {
  if (error_.ok()) error_ = std::move(status);
}

void CudaSampler::Begin(uint32_t slot, bool counts) {
  counted_[slot] = counts;
  if (counts) cuda::ClearCounts(CountsOf(slot), limits_.vocab, device_.stream());
}

void CudaSampler::Count(uint32_t slot, std::span<const int32_t> tokens, bool outputs) {
  if (!counted_[slot]) return;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), PinnedIds::kCapacity));
    const absl::StatusOr<const int32_t*> ids = count_ids_.Put(piece, device_.stream());
    if (!ids.ok()) return Check(ids.status());
    const int count = static_cast<int>(piece.size());
    cuda::AddToCounts(CountsOf(slot), limits_.vocab, *ids, count, outputs ? 0 : count,
                      device_.stream());
    tokens = tokens.subspan(piece.size());
  }
}

CudaSampler::Results CudaSampler::ResultsAt(std::byte* base) const {
  const size_t orders = limits_.max_orders, top = device_top_;
  Results out;
  size_t at = 0;
  const auto take = [&]<typename T>(T*& array, size_t count) {
    array = reinterpret_cast<T*>(base + at);
    at += Aligned(count * sizeof(T));
  };
  take(out.tokens, orders);
  take(out.logprobs, orders);
  take(out.ranks, orders);
  take(out.top_ids, orders * top);
  take(out.top_logprobs, orders * top);
  return out;
}

size_t CudaSampler::ResultBytes() const {
  const size_t orders = limits_.max_orders, top = device_top_;
  return 3 * Aligned(orders * sizeof(int32_t)) + 2 * Aligned(orders * top * sizeof(int32_t));
}

cuda::SampleRow CudaSampler::RowOf(const SampleOrder& order, std::vector<int32_t>& ids,
                                   std::vector<float>& values) const {
  const SamplingParams& from = *order.params;
  cuda::SampleRow row;
  row.slot = static_cast<int32_t>(order.slot);
  row.given = order.keep_logits ? 0 : order.given;
  row.num_logprobs = order.keep_logits ? -1 : std::min(order.num_top, device_top_);
  if (row.given >= 0) return row;
  row.temperature = from.temperature;
  row.top_p = from.top_p;
  row.top_k = from.top_k;
  row.min_p = from.min_p;
  row.presence_penalty = from.presence_penalty;
  row.frequency_penalty = from.frequency_penalty;
  row.repetition_penalty = from.repetition_penalty;
  row.seed = order.seed;
  row.sample_index = order.sample_index;
  row.position = order.position;
  row.counts = counted_[order.slot] ? row.slot : -1;
  row.adjust_begin = static_cast<int32_t>(ids.size());
  for (const auto& [id, bias] : from.logit_bias) {
    ids.push_back(id);
    values.push_back(bias);
  }
  if (order.num_outputs < from.min_tokens) {
    for (const int32_t id : from.banned_until_min) {
      ids.push_back(id);
      values.push_back(-std::numeric_limits<float>::infinity());
    }
  }
  row.adjust_end = static_cast<int32_t>(ids.size());
  return row;
}

// Rows and adjustments. Kernels read rows where they are, which costs less than a copy between two
// kernels; lists are copied.
absl::Status CudaSampler::FillInput(std::span<const SampleOrder> orders, Flight& flight,
                                    cuda::SampleStep& step) {
  adjust_ids_.clear();
  adjust_values_.clear();
  std::vector<cuda::SampleRow> rows;
  step.greedy_only = true;
  for (const SampleOrder& order : orders) {
    rows.push_back(RowOf(order, adjust_ids_, adjust_values_));
    step.greedy_only &= IsPlainGreedy(rows.back());
  }
  const size_t ids_at = InputRowBytes(rows.size());
  const size_t values_at = ids_at + Aligned(adjust_ids_.size() * sizeof(int32_t));
  const size_t bytes = values_at + Aligned(adjust_values_.size() * sizeof(float));
  const bool lists = !adjust_ids_.empty();
  if (lists && input_.bytes() < bytes) {
    RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(device_.stream()), "sampler"));
    ASSIGN_OR_RETURN(input_, device_.Allocate(2 * bytes, "sampler"));
  }
  if (flight.in_bytes < bytes) RETURN_IF_ERROR(MakeInput(flight, 2 * bytes));
  std::memcpy(flight.in, rows.data(), rows.size() * sizeof(cuda::SampleRow));
  std::memcpy(flight.in + ids_at, adjust_ids_.data(), adjust_ids_.size() * sizeof(int32_t));
  std::memcpy(flight.in + values_at, adjust_values_.data(), adjust_values_.size() * sizeof(float));
  const std::byte* in = lists ? input_.data() : flight.in;
  step.rows = reinterpret_cast<const cuda::SampleRow*>(in);
  step.adjust_ids = reinterpret_cast<const int32_t*>(in + ids_at);
  step.adjust_values = reinterpret_cast<const float*>(in + values_at);
  step.num_rows = static_cast<int>(rows.size());
  if (!lists) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(input_.data(), flight.in, bytes, cudaMemcpyHostToDevice, device_.stream()),
      "sampler");
}

bool CudaSampler::NeedsLogits(const SampleOrder& order) const {
  return order.keep_logits || order.num_top > device_top_;
}

absl::Status CudaSampler::Sample(const float* logits, std::span<const SampleOrder> orders) {
  RETURN_IF_ERROR(error_);
  if (under_way_.size() == std::size(flights_)) {
    return absl::InternalError("a third sampler step before the first was collected");
  }
  Flight& flight = flights_[next_];
  cuda::SampleStep step;
  RETURN_IF_ERROR(FillInput(orders, flight, step));
  step.logits = logits;
  step.vocab = limits_.vocab;
  step.counts = counts_.as<uint32_t>();
  step.max_top = device_top_;
  step.scratch = scratch_.data();
  step.last_tokens = last_tokens_.as<int32_t>();
  const Results results = ResultsAt(results_.data());
  step.tokens = results.tokens;
  step.host_tokens = ResultsAt(flight.out).tokens;
  step.logprobs = results.logprobs;
  step.ranks = results.ranks;
  step.top_ids = results.top_ids;
  step.top_logprobs = results.top_logprobs;
  cuda::Sample(step, device_.stream());
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "sampler"));
  flight.num_top.clear();
  flight.logits.assign(orders.size(), {});
  bool with_logprobs = false;
  for (size_t i = 0; i < orders.size(); ++i) {
    flight.num_top.push_back(orders[i].keep_logits ? -1 : orders[i].num_top);
    with_logprobs |= flight.num_top.back() >= 0;
    if (!NeedsLogits(orders[i])) continue;
    flight.logits[i].resize(limits_.vocab);
    RETURN_IF_ERROR(device_.Read(logits + i * limits_.vocab,
                                 std::as_writable_bytes(std::span(flight.logits[i]))));
  }
  if (with_logprobs) {
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(flight.out, results_.data(), ResultBytes(),
                                               cudaMemcpyDeviceToHost, device_.stream()),
                               "sampler"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(flight.done, device_.stream()), "sampler"));
  under_way_.push_back(next_);
  next_ = 1 - next_;
  return absl::OkStatus();
}

absl::Status CudaSampler::Follow(std::span<const SampleOrder> orders) {
  RETURN_IF_ERROR(error_);
  Flight& flight = flights_[next_];
  next_ = 1 - next_;
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(flight.done), "sampler"));
  cuda::SampleStep step;
  RETURN_IF_ERROR(FillInput(orders, flight, step));
  cuda::TakeTokens(step.rows, chosen(), step.num_rows, last_tokens_.as<int32_t>(),
                   device_.stream());
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "sampler"));
  return CudaStatus(cudaEventRecord(flight.done, device_.stream()), "sampler");
}

absl::StatusOr<std::span<const SampleOutcome>> CudaSampler::Collect() {
  Flight& flight = flights_[under_way_.front()];
  under_way_.pop_front();
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(flight.done), "step"));
  const Results results = ResultsAt(flight.out);
  outcomes_.clear();
  for (size_t i = 0; i < flight.num_top.size(); ++i) {
    outcomes_.push_back(OutcomeOf(results, i, flight));
  }
  return outcomes_;
}

SampleOutcome CudaSampler::OutcomeOf(const Results& results, size_t i, Flight& flight) const {
  SampleOutcome out;
  out.token = results.tokens[i];
  out.nonfinite = out.token < 0;
  std::vector<float>& logits = flight.logits[i];
  const int num_top = flight.num_top[i];
  if (num_top < 0) {
    out.logits = std::move(logits);
    return out;
  }
  if (out.token < 0) return out;
  if (num_top > device_top_) {
    out.logprob = LogprobOf(logits, out.token, num_top);
    return out;
  }
  out.logprob.token = out.token;
  out.logprob.logprob = results.logprobs[i];
  out.logprob.rank = results.ranks[i];
  const size_t first = i * device_top_;
  for (int t = 0; t < std::min(num_top, limits_.vocab); ++t) {
    out.logprob.top.emplace_back(results.top_ids[first + t], results.top_logprobs[first + t]);
  }
  return out;
}

}  // namespace rootstock
