#include "coordinator/engine/queue_bound.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int64_t kRetryAfterMs = 1000;

absl::Status Full(uint32_t waiting, const std::string& who) {
  return WithRetryAfter(
      MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "queue",
                absl::StrCat(waiting), absl::StrCat(who, " wait already; try again later")),
      kRetryAfterMs);
}

}  // namespace

QueuePlace::~QueuePlace() { queue_->Leave(adapter_); }

void QueuePlace::Rename(const std::string& adapter) {
  queue_->Move(adapter_, adapter);
  adapter_ = adapter;
}

absl::StatusOr<std::shared_ptr<QueuePlace>> QueueBound::Enter(const std::string& adapter,
                                                              absl::Time now) {
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(CheckAny());
    const uint32_t for_cold = max_ - max_ / 2;
    if (IsCold(adapter) && cold_ + Of(adapter) >= for_cold) {
      return Full(cold_, absl::StrCat("requests whose adapters are on no device, ", Of(adapter),
                                      " of them for this one,"));
    }
    Add(adapter);
  }
  changed_(1);
  return std::make_shared<QueuePlace>(shared_from_this(), adapter, now);
}

absl::Status QueueBound::Check() const {
  const std::lock_guard lock(mutex_);
  return CheckAny();
}

absl::Status QueueBound::CheckAny() const {
  return waiting_ < max_ ? absl::OkStatus() : Full(waiting_, "requests");
}

uint32_t QueueBound::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

uint32_t QueueBound::Of(const std::string& adapter) const {
  const auto it = of_.find(adapter);
  return it == of_.end() ? 0 : it->second;
}

void QueueBound::Add(const std::string& adapter) {
  ++waiting_;
  if (adapter.empty()) return;
  ++of_[adapter];
  if (IsCold(adapter)) ++cold_;
}

void QueueBound::Remove(const std::string& adapter) {
  --waiting_;
  if (adapter.empty()) return;
  if (--of_.at(adapter) == 0) of_.erase(adapter);
  if (IsCold(adapter)) --cold_;
}

void QueueBound::Move(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  Remove(from);
  Add(to);
}

void QueueBound::Leave(const std::string& adapter) {
  {
    const std::lock_guard lock(mutex_);
    Remove(adapter);
  }
  changed_(-1);
}

void QueueBound::SetResident(uint64_t attach, const std::string& adapter, bool resident) {
  const std::lock_guard lock(mutex_);
  const bool was_cold = IsCold(adapter);
  if (resident) {
    residents_[adapter].insert(attach);
  } else if (const auto it = residents_.find(adapter); it != residents_.end()) {
    it->second.erase(attach);
    if (it->second.empty()) residents_.erase(it);
  }
  if (was_cold && !IsCold(adapter)) cold_ -= Of(adapter);
  if (!was_cold && IsCold(adapter)) cold_ += Of(adapter);
}

void QueueBound::Forget(uint64_t attach) {
  const std::lock_guard lock(mutex_);
  for (auto it = residents_.begin(); it != residents_.end();) {
    const auto entry = it++;
    if (entry->second.erase(attach) == 0 || !entry->second.empty()) continue;
    cold_ += Of(entry->first);
    residents_.erase(entry);
  }
}

}  // namespace rootstock
