// Why nothing comes: requests wait in the coordinator while no group is ready.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "rootstock/v1/cluster.pb.h"

namespace rootstock {

// "no group is attached", "no group is ready (g0: forming)"; empty where one is.
std::string WhyNoGroup(const v1::StatusResponse& status);

// When nothing was heard for `after`, asks the coordinator for its groups and, where none is ready,
// says so once. Runs a thread of its own, which calls `say`. Thread-safe.
class WaitNotice {
 public:
  WaitNotice(std::shared_ptr<grpc::Channel> channel, std::chrono::milliseconds after,
             std::function<void(const std::string&)> say);
  ~WaitNotice();  // does not wait for the coordinator's answer
  // Something came: there is nothing to say any more.
  void Heard();

 private:
  void Run(std::chrono::milliseconds after);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::function<void(const std::string&)> say_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool heard_ = false;
  std::thread thread_;
};

}  // namespace rootstock
