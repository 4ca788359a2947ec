// The leader's connection to the coordinator: Group.Attach streams and Blobs.Fetch.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/plan/plan.h"
#include "worker/link/blobs/blob_source.h"
#include "worker/link/inbox.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace rootstock {

// A stream of one attach. Its events go to the inbox, which it shares, under its number; kLost is
// the last.
// *Thread-safe.*
class CoordinatorStream {
 public:
  virtual ~CoordinatorStream() = default;
  // Ordered, one write at a time; dropped after a loss.
  virtual void Send(v1::GroupMessage message) = 0;
  // No Send follows; the coordinator ends the stream.
  virtual void Finish() = 0;
  virtual void Cancel() = 0;
};

// Never blocks: an absent coordinator shows as kLost.
std::shared_ptr<CoordinatorStream> OpenStream(const std::shared_ptr<grpc::Channel>& channel,
                                              uint64_t number, const GroupInfo& hello,
                                              std::shared_ptr<Inbox> inbox);

// host:port; connects when used, again after losses. During a call a coordinator that is silent
// for `silence` is pinged, and lost when it stays so as long again: its host may have vanished.
// The coordinator allows a ping a second.
std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& coordinator, std::chrono::milliseconds silence = std::chrono::seconds(5));

// How long a fetch may stand still; as a whole it may take what it takes.
struct FetchPatience {
  // Before its first byte the coordinator may get the content out of an object store and verify it.
  std::chrono::milliseconds first = std::chrono::minutes(10);
  std::chrono::milliseconds next = std::chrono::seconds(30);
};

// Blobs.Fetch of the coordinator. DEADLINE_EXCEEDED / io_error for a fetch that stands still.
// *Thread-safe.*
class CoordinatorBlobs : public BlobSource {
 public:
  explicit CoordinatorBlobs(std::shared_ptr<grpc::Channel> channel, FetchPatience patience = {});
  FetchSource kind() const override { return FetchSource::kCoordinator; }
  absl::Status Fetch(const Digest& digest, const BlobSink& sink) override;
  void Cancel() override;

 private:
  // The call, until its end.
  absl::Status Run(grpc::ClientContext& context, const Digest& digest, const BlobSink& sink) const;

  const std::shared_ptr<grpc::Channel> channel_;
  const FetchPatience patience_;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::set<grpc::ClientContext*> running_;
};

}  // namespace rootstock
