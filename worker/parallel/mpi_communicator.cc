#include "worker/parallel/mpi_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/agree.h"
#include "worker/parallel/check_counts.h"

namespace rootstock {
namespace {

// Below this a single exchange of whole pieces beats two of slices.
constexpr size_t kSmallPiece = 4096;

absl::Status ToStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::InternalError(absl::StrCat(call, ": ", std::string(text, length)));
}

MPI_Datatype TypeOf(DType type) { return type == DType::kF32 ? MPI_FLOAT : MPI_UINT16_T; }

// What the ranks' parts of a gather are to MPI; only for totals within its int.
struct Places {
  explicit Places(std::span<const size_t> all) {
    int offset = 0;
    for (const size_t count : all) {
      counts.push_back(static_cast<int>(count));
      offsets.push_back(offset);
      offset += static_cast<int>(count);
    }
  }
  std::vector<int> counts, offsets;
};

// sum[i] = Σ_r parts[r · stride + i], in the order of r.
void SumInRankOrder(const float* parts, size_t stride, int ranks, std::span<float> sum) {
  std::copy_n(parts, sum.size(), sum.data());
  for (int r = 1; r < ranks; ++r) {
    const float* part = parts + r * stride;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, size_t max_count)
    : max_count_(std::clamp<size_t>(max_count, 1, INT_MAX)) {
  MPI_Comm_dup(comm, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&comm_);
}

absl::Status MpiCommunicator::Agree(const absl::Status& mine) { return AgreeOver(comm_, mine); }

absl::Status MpiCommunicator::AllReduceSum(void* data, size_t n, DType type) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllReduce, n * DTypeBytes(type));
  RETURN_IF_ERROR(CheckHostSum(type));
  if (size_ == 1) return absl::OkStatus();
  const std::span<float> all(static_cast<float*>(data), n);
  // Receive buffers hold size pieces; their counts are ints as well.
  const size_t piece = std::max<size_t>(1, max_count_ / size_);
  for (size_t begin = 0; begin < n; begin += piece) {
    RETURN_IF_ERROR(SumPiece(all.subspan(begin, std::min(piece, n - begin))));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::SumPiece(std::span<float> data) {
  const size_t n = data.size();
  if (n > kSmallPiece && size_ > 2) return ScatterReduceGather(data);
  parts_.resize(n * size_);
  RETURN_IF_ERROR(ToStatus(MPI_Allgather(data.data(), static_cast<int>(n), MPI_FLOAT, parts_.data(),
                                         static_cast<int>(n), MPI_FLOAT, comm_),
                           "MPI_Allgather"));
  SumInRankOrder(parts_.data(), n, size_, data);
  return absl::OkStatus();
}

absl::Status MpiCommunicator::ScatterReduceGather(std::span<float> data) {
  std::vector<int> counts(size_), offsets(size_), places(size_);
  for (int r = 0; r < size_; ++r) {
    offsets[r] = static_cast<int>(data.size() * r / size_);
    counts[r] = static_cast<int>(data.size() * (r + 1) / size_) - offsets[r];
  }
  const int mine = counts[rank_];
  std::vector<int> same(size_, mine);
  for (int r = 0; r < size_; ++r) places[r] = r * mine;
  parts_.resize(static_cast<size_t>(mine) * size_);
  RETURN_IF_ERROR(
      ToStatus(MPI_Alltoallv(data.data(), counts.data(), offsets.data(), MPI_FLOAT, parts_.data(),
                             same.data(), places.data(), MPI_FLOAT, comm_),
               "MPI_Alltoallv"));
  sum_.resize(mine);
  SumInRankOrder(parts_.data(), mine, size_, sum_);
  return ToStatus(MPI_Allgatherv(sum_.data(), mine, MPI_FLOAT, data.data(), counts.data(),
                                 offsets.data(), MPI_FLOAT, comm_),
                  "MPI_Allgatherv");
}

absl::Status MpiCommunicator::AllGather(const void* in, std::span<const size_t> counts, void* out,
                                        DType type) {
  const size_t total = TotalOf(counts), width = DTypeBytes(type);
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, total * width);
  RETURN_IF_ERROR(CheckCounts(counts, size_));
  std::byte* const mine = static_cast<std::byte*>(out) + TotalOf(counts.first(rank_)) * width;
  if (total <= max_count_) {
    const Places places(counts);
    return ToStatus(
        MPI_Allgatherv(in == mine ? MPI_IN_PLACE : in, places.counts[rank_], TypeOf(type), out,
                       places.counts.data(), places.offsets.data(), TypeOf(type), comm_),
        "MPI_Allgatherv");
  }
  if (in != mine && counts[rank_] > 0) std::memcpy(mine, in, counts[rank_] * width);
  std::byte* at = static_cast<std::byte*>(out);
  for (int r = 0; r < size_; ++r) {
    for (size_t begin = 0; begin < counts[r]; begin += max_count_) {
      const int n = static_cast<int>(std::min(max_count_, counts[r] - begin));
      RETURN_IF_ERROR(
          ToStatus(MPI_Bcast(at + begin * width, n, TypeOf(type), r, comm_), "MPI_Bcast"));
    }
    at += counts[r] * width;
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Gather(const void* in, std::span<const size_t> counts, void* out,
                                     DType type, int root) {
  const size_t total = TotalOf(counts), width = DTypeBytes(type);
  RETURN_IF_ERROR(CheckCounts(counts, size_));
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, counts[rank_] * width);
  if (total <= max_count_) {
    const Places places(counts);
    return ToStatus(MPI_Gatherv(in, places.counts[rank_], TypeOf(type), out, places.counts.data(),
                                places.offsets.data(), TypeOf(type), root, comm_),
                    "MPI_Gatherv");
  }
  constexpr int kTag = 1;
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  for (int r = 0; r < size_; ++r) {
    if (r == root && rank_ == root) std::memcpy(to, in, counts[r] * width);
    for (size_t begin = 0; r != root && begin < counts[r]; begin += max_count_) {
      const int n = static_cast<int>(std::min(max_count_, counts[r] - begin));
      int code = MPI_SUCCESS;
      if (rank_ == r) code = MPI_Send(from + begin * width, n, TypeOf(type), root, kTag, comm_);
      if (rank_ == root) {
        code = MPI_Recv(to + begin * width, n, TypeOf(type), r, kTag, comm_, MPI_STATUS_IGNORE);
      }
      RETURN_IF_ERROR(ToStatus(code, "MPI_Send or MPI_Recv"));
    }
    if (rank_ == root) to += counts[r] * width;
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Broadcast(void* data, size_t bytes, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kBroadcast, bytes);
  auto* const at = static_cast<std::byte*>(data);
  for (size_t begin = 0; begin < bytes; begin += max_count_) {
    const int n = static_cast<int>(std::min(max_count_, bytes - begin));
    RETURN_IF_ERROR(ToStatus(MPI_Bcast(at + begin, n, MPI_BYTE, root, comm_), "MPI_Bcast"));
  }
  return absl::OkStatus();
}

}  // namespace rootstock
