#include "worker/link/group_link.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/link/blobs/object_blobs.h"
#include "worker/link/blobs/prefetcher.h"
#include "worker/link/coordinator_client.h"
#include "worker/link/inbox.h"
#include "worker/link/leader.h"
#include "worker/link/member.h"
#include "worker/link/signals.h"

namespace rootstock {
namespace {

absl::StatusOr<int> RunFollower(GroupBus& bus, Member& member) {
  const SignalThread signals([tp_rank = bus.tp_rank()] {
    LogInfo("a signal asks tp_rank ", tp_rank, " to leave: only tp_rank 0 obeys, for the group");
  });
  for (;;) {
    const BusMessage message = bus.Receive(/*busy=*/member.has_running());
    if (message.kind == BusKind::kExit) {
      if (!message.bytes.empty()) LogError(message.bytes);
      return message.bytes.empty() ? 0 : 1;
    }
    RETURN_IF_ERROR(member.Handle(message).status());
  }
}

}  // namespace

absl::StatusOr<int> RunGroup(GroupBus& bus, CommandExecutor& executor, BlobCache& cache,
                             const LinkOptions& options) {
  const bool leader = bus.tp_rank() == 0;
  const auto inbox = std::make_shared<Inbox>();
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<CoordinatorBlobs> blobs;
  std::unique_ptr<ObjectBlobs> objects;
  std::unique_ptr<Prefetcher> prefetcher;
  if (leader || options.node_leader) channel = MakeChannel(options.coordinator);
  // What ends on other ranks is seen at a step or tick, or when the leader asks.
  const auto on_loaded = [inbox, leader] {
    if (leader) inbox->Push({LinkEvent::Kind::kCollect, 0, {}, {}});
  };
  if (options.node_leader) {
    cache.SweepTemporaries();
    blobs = std::make_unique<CoordinatorBlobs>(channel);
    std::vector<BlobSource*> sources = {blobs.get()};
    if (!options.object_store.empty()) {
      ASSIGN_OR_RETURN(objects, ObjectBlobs::Open(options.object_store));
      sources.insert(sources.begin(), objects.get());
    }
    prefetcher = std::make_unique<Prefetcher>(cache, std::move(sources), on_loaded);
  }
  executor.adapters().NotifyWhenLoaded(on_loaded);
  std::function<void()> on_step_done;
  if (leader) {
    on_step_done = [inbox] { inbox->Push({LinkEvent::Kind::kStepDone, 0, {}, {}}); };
  }
  Member member(bus, executor, cache, prefetcher.get(), on_step_done);
  if (!leader) return RunFollower(bus, member);
  SignalThread signals([inbox] { inbox->Push({LinkEvent::Kind::kDrain, 0, {}, {}}); });
  const auto connect = [&](uint64_t number) {
    return OpenStream(channel, number, options.info, inbox);
  };
  return Leader(bus, member, *inbox, connect, options.coordinator).Run();
}

}  // namespace rootstock
