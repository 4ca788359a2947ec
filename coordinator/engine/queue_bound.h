// How many requests may wait.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rootstock {

class QueueBound;

// A request's place among those that wait, left when it goes. One owner at a time.
class QueuePlace {
 public:
  QueuePlace(std::shared_ptr<QueueBound> queue, std::string adapter, absl::Time since)
      : queue_(std::move(queue)), adapter_(std::move(adapter)), since_(since) {}
  ~QueuePlace();
  QueuePlace(const QueuePlace&) = delete;
  QueuePlace& operator=(const QueuePlace&) = delete;

  absl::Time since() const { return since_; }  // engine clock
  // What it waits for is known by another name now.
  void Rename(const std::string& adapter);

 private:
  const std::shared_ptr<QueueBound> queue_;
  std::string adapter_;
  const absl::Time since_;
};

// Requests whose adapter is on no group's device may take half of the places, and those of one
// adapter no more of them than are left to others: a stalled one closes the queue neither for the
// base and resident adapters nor for the next one that has to be loaded. *Thread-safe.*
class QueueBound : public std::enable_shared_from_this<QueueBound> {
 public:
  // `changed` hears how many more wait; it must not block.
  QueueBound(uint32_t max, std::function<void(int)> changed)
      : max_(max), changed_(std::move(changed)) {}

  // RESOURCE_EXHAUSTED / queue_full. `adapter`: any name for it, empty for the base.
  absl::StatusOr<std::shared_ptr<QueuePlace>> Enter(const std::string& adapter, absl::Time now);
  absl::Status Check() const;  // whether there is a place for anybody
  uint32_t waiting() const;

  // On the device of the group of this attach.
  void SetResident(uint64_t attach, const std::string& adapter, bool resident);
  void Forget(uint64_t attach);

 private:
  friend class QueuePlace;
  bool IsCold(const std::string& adapter) const {
    return !adapter.empty() && !residents_.contains(adapter);
  }
  absl::Status CheckAny() const;
  void Add(const std::string& adapter);
  void Remove(const std::string& adapter);
  void Move(const std::string& from, const std::string& to);
  void Leave(const std::string& adapter);
  uint32_t Of(const std::string& adapter) const;

  const uint32_t max_;
  const std::function<void(int)> changed_;
  mutable std::mutex mutex_;
  uint32_t waiting_ = 0;
  uint32_t cold_ = 0;                                    // of waiting_
  std::map<std::string, uint32_t> of_;                   // waiting, by adapter
  std::map<std::string, std::set<uint64_t>> residents_;  // attaches that have it
};

}  // namespace rootstock
