#include "worker/parallel/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/check_counts.h"

namespace rootstock {

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

absl::Status ThreadCommunicator::AllReduceSum(std::span<float> data) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllReduce, data.size_bytes());
  if (size() == 1) return absl::OkStatus();
  RETURN_IF_ERROR(Post(data.data(), data.size_bytes()));
  for (const ThreadGroup::Posted& other : group_->posted_) {
    if (other.bytes == data.size_bytes()) continue;
    const absl::Status why = absl::InternalError(
        absl::StrCat("all-reduce of ", data.size_bytes(), " bytes meets one of ", other.bytes));
    group_->Abort(why);
    return why;
  }
  if (rank_ == 0) group_->sum_.resize(data.size());
  RETURN_IF_ERROR(group_->Meet());
  const size_t begin = data.size() * rank_ / size();
  const size_t end = data.size() * (rank_ + 1) / size();
  for (size_t i = begin; i < end; ++i) {
    float sum = static_cast<const float*>(group_->posted_[0].data)[i];
    for (int r = 1; r < size(); ++r) sum += static_cast<const float*>(group_->posted_[r].data)[i];
    group_->sum_[i] = sum;
  }
  RETURN_IF_ERROR(group_->Meet());
  std::copy_n(group_->sum_.data(), data.size(), data.data());
  return group_->Meet();
}

absl::Status ThreadCommunicator::CopyPosted(std::span<const size_t> counts, std::span<float> out) {
  size_t offset = 0;
  for (int r = 0; r < size(); ++r) {
    const ThreadGroup::Posted& other = group_->posted_[r];
    if (other.bytes != counts[r] * sizeof(float)) {
      const absl::Status why = absl::InternalError(absl::StrCat(
          "gather: tp_rank ", r, " gave ", other.bytes, " bytes, counted were ", counts[r]));
      group_->Abort(why);
      return why;
    }
    std::copy_n(static_cast<const float*>(other.data), counts[r], out.data() + offset);
    offset += counts[r];
  }
  return absl::OkStatus();
}

absl::Status ThreadCommunicator::AllGather(std::span<const float> in,
                                           std::span<const size_t> counts, std::span<float> out) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, out.size_bytes());
  RETURN_IF_ERROR(CheckCounts(in, counts, out, rank_, size()));
  RETURN_IF_ERROR(Post(in.data(), in.size_bytes()));
  RETURN_IF_ERROR(CopyPosted(counts, out));
  return group_->Meet();
}

absl::Status ThreadCommunicator::Gather(std::span<const float> in, std::span<const size_t> counts,
                                        std::span<float> out, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kAllGather, in.size_bytes());
  RETURN_IF_ERROR(CheckGather(in, counts, out, rank_, size(), root));
  RETURN_IF_ERROR(Post(in.data(), in.size_bytes()));
  if (rank_ == root) RETURN_IF_ERROR(CopyPosted(counts, out));
  return group_->Meet();
}

absl::Status ThreadCommunicator::Broadcast(std::span<std::byte> data, int root) {
  CollectiveStats::Timer timer(stats_, CollectiveOp::kBroadcast, data.size_bytes());
  RETURN_IF_ERROR(Post(data.data(), data.size_bytes()));
  const ThreadGroup::Posted& from = group_->posted_[root];
  if (from.bytes != data.size_bytes()) {
    const absl::Status why = absl::InternalError(
        absl::StrCat("broadcast of ", from.bytes, " bytes meets a buffer of ", data.size_bytes()));
    group_->Abort(why);
    return why;
  }
  if (rank_ != root && !data.empty()) std::memcpy(data.data(), from.data, data.size_bytes());
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
