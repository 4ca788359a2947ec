#include "worker/link/group_bus.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

using Clock = std::chrono::steady_clock;

// A plan follows its predecessor within this when the group is busy.
constexpr auto kYieldFor = std::chrono::microseconds(300);
constexpr auto kFirstSleep = std::chrono::microseconds(50);
constexpr auto kLongestSleep = std::chrono::microseconds(1000);

}  // namespace

GroupBus::GroupBus(MPI_Comm comm) {
  MPI_Comm_dup(comm, &plans_);
  MPI_Comm_dup(comm, &status_);
  MPI_Comm_rank(comm, &tp_rank_);
  MPI_Comm_size(comm, &tp_size_);
}

GroupBus::~GroupBus() {
  MPI_Comm_free(&plans_);
  MPI_Comm_free(&status_);
}

void GroupBus::CheckPatience(Clock::time_point start) const {
  if (!patience_.has_value() || Clock::now() - start < *patience_) return;
  on_loss_(absl::StrCat("a tp_rank has not answered for ", patience_->count(), " ms"));
}

void GroupBus::WaitPatiently(MPI_Request* request) const {
  if (!patience_.has_value()) {
    MPI_Wait(request, MPI_STATUS_IGNORE);
    return;
  }
  const Clock::time_point start = Clock::now();
  int done = 0;
  for (MPI_Test(request, &done, MPI_STATUS_IGNORE); !done;
       MPI_Test(request, &done, MPI_STATUS_IGNORE)) {
    sched_yield();
    CheckPatience(start);
  }
}

// Header and bytes: {kind, size}, then the payload.
void GroupBus::Send(const BusMessage& message) {
  if (tp_size_ == 1) return;
  std::array<uint64_t, 2> header = {static_cast<uint64_t>(message.kind), message.bytes.size()};
  MPI_Request request;
  MPI_Ibcast(header.data(), 2, MPI_UINT64_T, 0, plans_, &request);
  WaitPatiently(&request);
  std::string bytes = message.bytes;
  BroadcastPayload(bytes);
}

// Below 4 MB: gRPC's limit of a message.
void GroupBus::BroadcastPayload(std::string& bytes) {
  if (bytes.empty()) return;
  MPI_Request request;
  MPI_Ibcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, plans_, &request);
  WaitPatiently(&request);
}

BusMessage GroupBus::Receive(bool busy) {
  std::array<uint64_t, 2> header{};
  MPI_Request request;
  MPI_Ibcast(header.data(), 2, MPI_UINT64_T, 0, plans_, &request);
  const Clock::time_point start = Clock::now();
  std::chrono::microseconds sleep = kFirstSleep;
  int done = 0;
  for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done;
       MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
    if (busy) CheckPatience(start);
    if (Clock::now() - start < kYieldFor) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, kLongestSleep);
    }
  }
  BusMessage message{static_cast<BusKind>(header[0]), std::string(header[1], '\0')};
  BroadcastPayload(message.bytes);
  return message;
}

absl::Status GroupBus::Agree(const absl::Status& mine) {
  std::vector<uint64_t> numbers;
  return Agree(mine, 0, numbers);
}

absl::Status GroupBus::Meet(const absl::Status& mine) {
  if (met_.ok()) met_ = Agree(mine);
  return met_;
}

absl::Status GroupBus::Agree(const absl::Status& mine, uint64_t number,
                             std::vector<uint64_t>& numbers, bool at_once) {
  numbers.assign(tp_size_, number);
  if (tp_size_ == 1) return mine;
  const std::array<uint64_t, 2> said = {mine.ok() ? 0u : 1u, number};
  std::vector<std::array<uint64_t, 2>> all(tp_size_);
  MPI_Request request;
  MPI_Iallgather(said.data(), 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, status_, &request);
  if (at_once) WaitPatiently(&request);
  if (!at_once) MPI_Wait(&request, MPI_STATUS_IGNORE);
  int root = -1, failed = 0;  // the lowest failing rank; how many failed
  for (int r = 0; r < tp_size_; ++r) {
    numbers[r] = all[r][1];
    if (all[r][0] == 0) continue;
    if (failed++ == 0) root = r;
  }
  if (failed == 0) return absl::OkStatus();
  v1::Outcome outcome;
  ToProto(mine, &outcome);
  outcome.ParseFromString(BroadcastBytes(outcome.SerializeAsString(), root));
  const absl::Status theirs = StatusFromProto(outcome);
  return failed == tp_size_ ? theirs : Annotate(theirs, absl::StrCat("tp_rank ", root));
}

std::string GroupBus::BroadcastBytes(std::string bytes, int root) {
  uint64_t size = bytes.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, root, status_);
  bytes.resize(size);
  MPI_Bcast(bytes.data(), static_cast<int>(size), MPI_BYTE, root, status_);
  return bytes;
}

std::vector<std::string> GroupBus::AllGatherEqual(const std::string& mine) {
  if (tp_size_ == 1) return {mine};
  const int size = static_cast<int>(mine.size());
  std::string joined(mine.size() * static_cast<size_t>(tp_size_), '\0');
  MPI_Allgather(mine.data(), size, MPI_BYTE, joined.data(), size, MPI_BYTE, status_);
  std::vector<std::string> all;
  for (int r = 0; r < tp_size_; ++r) all.push_back(joined.substr(r * mine.size(), mine.size()));
  return all;
}

std::vector<std::string> GroupBus::AllGather(const std::string& mine) {
  std::vector<std::string> all;
  for (int r = 0; r < tp_size_; ++r) all.push_back(BroadcastBytes(mine, r));
  return all;
}

}  // namespace rootstock
