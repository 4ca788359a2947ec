#include "worker/parallel/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
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

absl::Status MpiCommunicator::AllReduceSum(std::span<float> data) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllReduce, data.size_bytes());
  if (size_ == 1) return absl::OkStatus();
  // Receive buffers hold size pieces; their counts are ints as well.
  const size_t piece = std::max<size_t>(1, max_count_ / size_);
  for (size_t begin = 0; begin < data.size(); begin += piece) {
    RETURN_IF_ERROR(SumPiece(data.subspan(begin, std::min(piece, data.size() - begin))));
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

absl::Status MpiCommunicator::AllGather(std::span<const float> in, std::span<const size_t> counts,
                                        std::span<float> out) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, out.size_bytes());
  RETURN_IF_ERROR(CheckCounts(in, counts, out, rank_, size_));
  if (out.size() <= max_count_) {
    std::vector<int> sizes(counts.begin(), counts.end()), offsets(size_, 0);
    std::partial_sum(sizes.begin(), sizes.end() - 1, offsets.begin() + 1);
    return ToStatus(MPI_Allgatherv(in.data(), static_cast<int>(in.size()), MPI_FLOAT, out.data(),
                                   sizes.data(), offsets.data(), MPI_FLOAT, comm_),
                    "MPI_Allgatherv");
  }
  size_t offset = 0;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) std::copy(in.begin(), in.end(), out.data() + offset);
    for (size_t begin = 0; begin < counts[r]; begin += max_count_) {
      const int n = static_cast<int>(std::min(max_count_, counts[r] - begin));
      RETURN_IF_ERROR(
          ToStatus(MPI_Bcast(out.data() + offset + begin, n, MPI_FLOAT, r, comm_), "MPI_Bcast"));
    }
    offset += counts[r];
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Gather(std::span<const float> in, std::span<const size_t> counts,
                                     std::span<float> out, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, in.size_bytes());
  RETURN_IF_ERROR(CheckGather(in, counts, out, rank_, size_, root));
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (total <= max_count_) {
    std::vector<int> sizes(counts.begin(), counts.end()), offsets(size_, 0);
    std::partial_sum(sizes.begin(), sizes.end() - 1, offsets.begin() + 1);
    return ToStatus(MPI_Gatherv(in.data(), static_cast<int>(in.size()), MPI_FLOAT, out.data(),
                                sizes.data(), offsets.data(), MPI_FLOAT, root, comm_),
                    "MPI_Gatherv");
  }
  constexpr int kTag = 1;
  size_t offset = 0;
  for (int r = 0; r < size_; ++r) {
    if (r == root && rank_ == root) std::copy(in.begin(), in.end(), out.data() + offset);
    for (size_t begin = 0; r != root && begin < counts[r]; begin += max_count_) {
      const int n = static_cast<int>(std::min(max_count_, counts[r] - begin));
      int code = MPI_SUCCESS;
      if (rank_ == r) code = MPI_Send(in.data() + begin, n, MPI_FLOAT, root, kTag, comm_);
      if (rank_ == root) {
        code =
            MPI_Recv(out.data() + offset + begin, n, MPI_FLOAT, r, kTag, comm_, MPI_STATUS_IGNORE);
      }
      RETURN_IF_ERROR(ToStatus(code, "MPI_Send or MPI_Recv"));
    }
    offset += counts[r];
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Broadcast(std::span<std::byte> data, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kBroadcast, data.size_bytes());
  for (size_t begin = 0; begin < data.size(); begin += max_count_) {
    const int n = static_cast<int>(std::min(max_count_, data.size() - begin));
    RETURN_IF_ERROR(
        ToStatus(MPI_Bcast(data.data() + begin, n, MPI_BYTE, root, comm_), "MPI_Bcast"));
  }
  return absl::OkStatus();
}

}  // namespace rootstock
