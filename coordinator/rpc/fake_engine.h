// An Engine whose every move a test makes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "coordinator/engine/engine.h"

namespace rootstock {

// Accepts every request, or fails it with `refusal`; the test speaks to its sink. Thread-safe.
class FakeEngine : public Engine {
 public:
  struct Call {
    GenerateRequest request;
    std::shared_ptr<GenerateSink> sink;
  };

  absl::StatusOr<RequestNumber> Generate(GenerateRequest request,
                                         std::shared_ptr<GenerateSink> sink) override {
    std::lock_guard lock(mutex_);
    if (!refusal.ok()) return refusal;
    GenerateAccepted accepted{.request_id = request.request_id, .model = request.model};
    accepted.seed = request.sampling.seed.value_or(77);
    accepted.prompt_tokens = 2;
    if (request.model != "base") accepted.adapter = Sha256Of(request.model);
    sink->OnAccepted(accepted);
    calls_.push_back({std::move(request), std::move(sink)});
    wake_.notify_all();
    return RequestNumber(calls_.size());
  }
  absl::StatusOr<std::shared_ptr<QueuePlace>> Enter(const GenerateRequest& request) override {
    if (!precheck.ok()) return precheck;
    return queue->Enter(request.model, absl::UnixEpoch());
  }
  void Refused(const absl::Status& status) override {
    std::lock_guard lock(mutex_);
    refused_.push_back(status);
    wake_.notify_all();
  }
  void Cancel(RequestNumber request) override {
    std::lock_guard lock(mutex_);
    cancelled_.push_back(request.value);
    wake_.notify_all();
  }
  EngineStatus Status() const override {
    ++status_calls;
    return status;
  }
  absl::Status Drain(absl::Time) override { return absl::OkStatus(); }
  absl::Status DrainGroup(const std::string& group) override {
    return group == "g0" ? absl::OkStatus() : absl::NotFoundError("group=" + group + ": none");
  }
  void Unload(const Digest& digest, std::function<void(const UnloadedBytes&)> done) override {
    std::unique_lock lock(mutex_);
    unloaded.push_back(digest);
    if (hold_unloads) {
      held_unloads_.push_back(std::move(done));
      wake_.notify_all();
      return;
    }
    lock.unlock();
    done(unloaded_bytes);
  }
  // Takes one that was held.
  std::function<void(const UnloadedBytes&)> WaitForUnload() {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(20), [&] { return !held_unloads_.empty(); });
    auto done = std::move(held_unloads_.at(0));
    held_unloads_.erase(held_unloads_.begin());
    return done;
  }
  absl::Status CheckPins(const std::vector<AdapterPin>&) const override { return pins_refusal; }
  void SetPins(std::vector<AdapterPin> now) override { pins = std::move(now); }

  std::vector<Call> calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  Call WaitForCall(size_t number) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(20), [&] { return calls_.size() >= number; });
    return calls_.at(number - 1);
  }
  std::vector<uint64_t> WaitForCancels(size_t count) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(20), [&] { return cancelled_.size() >= count; });
    return cancelled_;
  }

  std::vector<absl::Status> WaitForRefused(size_t count) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(20), [&] { return refused_.size() >= count; });
    return refused_;
  }

  // Set before the calls that they are for.
  absl::Status refusal, precheck;
  const std::shared_ptr<QueueBound> queue = std::make_shared<QueueBound>(8, [](int) {});
  EngineStatus status;
  mutable std::atomic<int> status_calls = 0;
  std::vector<Digest> unloaded;
  UnloadedBytes unloaded_bytes;
  bool hold_unloads = false;
  absl::Status pins_refusal;
  std::vector<AdapterPin> pins;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Call> calls_;
  std::vector<uint64_t> cancelled_;
  std::vector<absl::Status> refused_;
  std::vector<std::function<void(const UnloadedBytes&)>> held_unloads_;
};

}  // namespace rootstock
