#include "coordinator/ctl/wait_notice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rootstock/v1/cluster.grpc.pb.h"

namespace rootstock {

std::string WhyNoGroup(const v1::StatusResponse& status) {
  std::string states;
  for (const v1::GroupStatus& group : status.groups()) {
    if (group.state() == "ready") return "";
    absl::StrAppend(&states, states.empty() ? "" : ", ", group.name(), ": ", group.state());
  }
  return states.empty() ? "no group is attached" : absl::StrCat("no group is ready (", states, ")");
}

WaitNotice::WaitNotice(std::shared_ptr<grpc::Channel> channel, std::chrono::milliseconds after,
                       std::function<void(const std::string&)> say)
    : channel_(std::move(channel)), say_(std::move(say)), thread_([this, after] { Run(after); }) {}

WaitNotice::~WaitNotice() {
  Heard();
  thread_.join();
}

void WaitNotice::Heard() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(heard_, true)) return;
  changed_.notify_all();
  context_.TryCancel();
}

void WaitNotice::Run(std::chrono::milliseconds after) {
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, after, [this] { return heard_; })) return;
  }
  v1::StatusResponse status;
  const auto stub = v1::Cluster::NewStub(channel_);
  if (!stub->Status(&context_, v1::StatusRequest(), &status).ok()) return;
  const std::string why = WhyNoGroup(status);
  const std::lock_guard lock(mutex_);
  if (!heard_ && !why.empty()) say_(why);
}

}  // namespace rootstock
