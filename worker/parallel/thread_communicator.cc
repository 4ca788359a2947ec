#include "worker/parallel/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/agree.h"
#include "worker/parallel/check_counts.h"

namespace rootstock {
namespace {

// Shares no bytes with a status of another thread: how their owners are counted can't be seen by
// ThreadSanitizer, which doesn't know Abseil's library.
absl::Status OwnCopy(const absl::Status& status) {
  absl::Status out(status.code(), std::string(status.message()));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) {
    out.SetPayload(url, absl::Cord(std::string(payload)));
  });
  return out;
}

}  // namespace

void ThreadGroup::Abort(const absl::Status& why) {
  std::lock_guard lock(mutex_);
  if (aborted_.ok()) aborted_ = why;
  changed_.notify_all();
}

absl::Status ThreadGroup::Meet() {
  std::unique_lock lock(mutex_);
  if (!aborted_.ok()) return aborted_;
  if (++waiting_ == size_) {
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
    return absl::OkStatus();
  }
  const uint64_t round = round_;
  changed_.wait(lock, [&] { return round_ != round || !aborted_.ok(); });
  return round_ != round ? absl::OkStatus() : aborted_;
}

absl::Status ThreadCommunicator::Post(const void* data, size_t bytes) {
  group_->posted_[rank_] = {data, bytes};
  return group_->Meet();
}

absl::Status ThreadCommunicator::Agree(const absl::Status& mine) {
  RETURN_IF_ERROR(Post(&mine, 0));
  absl::Status first;
  for (int r = 0; r < size() && first.ok(); ++r) {
    const auto& of_rank = *static_cast<const absl::Status*>(group_->posted_[r].data);
    if (!of_rank.ok()) first = FailedOn(r, OwnCopy(of_rank));
  }
  RETURN_IF_ERROR(group_->Meet());
  return first;
}

absl::Status ThreadCommunicator::AllReduceSum(void* data, size_t n, DType type) {
  const size_t bytes = n * DTypeBytes(type);
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllReduce, bytes);
  RETURN_IF_ERROR(CheckHostSum(type));
  if (size() == 1) return absl::OkStatus();
  RETURN_IF_ERROR(Post(data, bytes));
  for (const ThreadGroup::Posted& other : group_->posted_) {
    if (other.bytes == bytes) continue;
    const absl::Status why = absl::InternalError(
        absl::StrCat("all-reduce of ", bytes, " bytes meets one of ", other.bytes));
    group_->Abort(why);
    return why;
  }
  if (rank_ == 0) group_->sum_.resize(n);
  RETURN_IF_ERROR(group_->Meet());
  const size_t begin = n * rank_ / size();
  const size_t end = n * (rank_ + 1) / size();
  for (size_t i = begin; i < end; ++i) {
    float sum = static_cast<const float*>(group_->posted_[0].data)[i];
    for (int r = 1; r < size(); ++r) sum += static_cast<const float*>(group_->posted_[r].data)[i];
    group_->sum_[i] = sum;
  }
  RETURN_IF_ERROR(group_->Meet());
  std::copy_n(group_->sum_.data(), n, static_cast<float*>(data));
  return group_->Meet();
}

absl::Status ThreadCommunicator::CopyPosted(std::span<const size_t> counts, void* out, DType type) {
  auto* to = static_cast<std::byte*>(out);
  for (int r = 0; r < size(); ++r) {
    const ThreadGroup::Posted& other = group_->posted_[r];
    const size_t bytes = counts[r] * DTypeBytes(type);
    if (other.bytes != bytes) {
      const absl::Status why = absl::InternalError(absl::StrCat(
          "gather: tp_rank ", r, " gave ", other.bytes, " bytes, counted were ", counts[r]));
      group_->Abort(why);
      return why;
    }
    if (bytes > 0 && to != other.data) std::memcpy(to, other.data, bytes);
    to += bytes;
  }
  return absl::OkStatus();
}

absl::Status ThreadCommunicator::AllGather(const void* in, std::span<const size_t> counts,
                                           void* out, DType type) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather,
                               TotalOf(counts) * DTypeBytes(type));
  RETURN_IF_ERROR(CheckCounts(counts, size()));
  RETURN_IF_ERROR(Post(in, counts[rank_] * DTypeBytes(type)));
  RETURN_IF_ERROR(CopyPosted(counts, out, type));
  return group_->Meet();
}

absl::Status ThreadCommunicator::Gather(const void* in, std::span<const size_t> counts, void* out,
                                        DType type, int root) {
  RETURN_IF_ERROR(CheckCounts(counts, size()));
  const size_t bytes = counts[rank_] * DTypeBytes(type);
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, bytes);
  RETURN_IF_ERROR(Post(in, bytes));
  if (rank_ == root) RETURN_IF_ERROR(CopyPosted(counts, out, type));
  return group_->Meet();
}

absl::Status ThreadCommunicator::Broadcast(void* data, size_t bytes, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kBroadcast, bytes);
  RETURN_IF_ERROR(Post(data, bytes));
  const ThreadGroup::Posted& from = group_->posted_[root];
  if (from.bytes != bytes) {
    const absl::Status why = absl::InternalError(
        absl::StrCat("broadcast of ", from.bytes, " bytes meets a buffer of ", bytes));
    group_->Abort(why);
    return why;
  }
  if (rank_ != root && bytes > 0) std::memcpy(data, from.data, bytes);
  return group_->Meet();
}

absl::Status RunOnRanks(int size, const std::function<absl::Status(Communicator&)>& rank_main) {
  const auto group = std::make_shared<ThreadGroup>(size);
  std::mutex mutex;
  absl::Status first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(group, rank);
      const absl::Status status = rank_main(communicator);
      if (status.ok()) return;
      {
        std::lock_guard lock(mutex);
        if (first.ok()) first = status;
      }
      group->Abort(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace rootstock
