// Requests that end before their answer does: cancelled, late, or as the coordinator drains.
#include <utility>

#include "coordinator/engine/router.h"

namespace rootstock {

void Router::Cancel(RequestNumber request) {
  queue_->Post([this, request, now = clock_()] { Abort(request, AbortCause::kCancelled, now); });
}

void Router::DrainOut() {
  queue_->Post([this] {
    drained_out_ = true;
    std::vector<uint64_t> numbers;
    for (const auto& [number, known] : requests_) numbers.push_back(number);
    for (const uint64_t number : numbers) {
      Abort(RequestNumber(number), AbortCause::kDraining, clock_());
    }
  });
}

void Router::OnDeadline() {
  armed_ = absl::InfiniteFuture();
  while (!deadlines_.empty() && deadlines_.begin()->first <= clock_()) {
    const auto [at, number] = *deadlines_.begin();
    deadlines_.erase(deadlines_.begin());
    Abort(RequestNumber(number), AbortCause::kDeadline, at);
  }
  ArmDeadline();
}

void Router::ArmDeadline() {
  const absl::Time next = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  if (next == armed_) return;
  queue_->ClearTimers();
  armed_ = next;
  if (next != absl::InfiniteFuture()) queue_->PostAt(next, [this] { OnDeadline(); });
}

void Router::ForgetDeadline(const LiveRequest& request) {
  if (deadlines_.erase({request.deadline, request.number.value}) > 0) ArmDeadline();
}

void Router::Abort(RequestNumber number, AbortCause cause, absl::Time at) {
  const auto it = requests_.find(number.value);
  if (it == requests_.end()) return;
  LiveRequest& request = *it->second.request;
  if (request.abort == AbortCause::kNone) {
    if (cause == AbortCause::kCancelled && EndedByDeadline(request.arrived, request.deadline, at)) {
      cause = AbortCause::kDeadline;
    }
    request.aborted_at = at;
    request.abort = cause;
  }
  if (it->second.attach != 0) {
    groups_.at(it->second.attach).engine->Poke(number);
    return;
  }
  CloseHere(number, AbortStatus(request));
}

void Router::CloseHere(RequestNumber number, const absl::Status& status) {
  const RequestPtr request = std::move(requests_.at(number.value).request);
  requests_.erase(number.value);
  waiting_.erase(number.value);
  ForgetDeadline(*request);
  request->closed = true;
  RequestEnded(*request);
  close_(request, status);
}

}  // namespace rootstock
