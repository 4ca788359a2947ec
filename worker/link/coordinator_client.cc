#include "worker/link/coordinator_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/error_trailer.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {
namespace {

constexpr int kFirstReconnectMs = 100;
constexpr int kLastReconnectMs = 2000;

// Keeps itself alive until gRPC is done with it.
class AttachStream : public CoordinatorStream,
                     public grpc::ClientBidiReactor<v1::GroupMessage, v1::CoordinatorMessage>,
                     public std::enable_shared_from_this<AttachStream> {
 public:
  AttachStream(std::shared_ptr<grpc::Channel> channel, uint64_t number,
               std::shared_ptr<Inbox> inbox)
      : channel_(std::move(channel)), stub_(channel_), number_(number), inbox_(std::move(inbox)) {}

  void Begin(const GroupInfo& hello) {
    self_ = shared_from_this();
    stub_.async()->Attach(&context_, this);
    v1::GroupMessage message;
    ToProto(hello, message.mutable_hello());
    // Writes may be started from the step thread at any time: a hold until the stream has ended.
    AddHold();
    Send(std::move(message));
    StartRead(&incoming_);
    StartCall();
  }

  void Send(v1::GroupMessage message) override {
    std::lock_guard lock(mutex_);
    if (ended_ || finishing_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Finish() override {
    std::lock_guard lock(mutex_);
    if (ended_ || finishing_) return;
    finishing_ = true;
    if (outgoing_.empty()) StartWritesDone();
  }

  void Cancel() override { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {  // the read side hears of the loss
      EndLocked();
      return;
    }
    outgoing_.pop_front();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (finishing_ && !ended_) {
      StartWritesDone();
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      EndLocked();
      return;
    }
    LinkEvent event{LinkEvent::Kind::kMessage, number_, std::move(incoming_), {}};
    incoming_ = {};
    if (!inbox_->Push(std::move(event))) context_.TryCancel();
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Inbox> inbox = inbox_;
    LinkEvent lost{LinkEvent::Kind::kLost,
                   number_,
                   {},
                   status.ok() ? absl::UnavailableError("the coordinator ended the stream")
                               : FromGrpcStatus(status, context_)};
    // Before anybody hears of it: whoever hears may let go of the channel, and gRPC can't bear to
    // have the last of it destroyed on a thread of its own.
    self_.reset();
    inbox->Push(std::move(lost));
  }

 private:
  void EndLocked() {
    if (ended_) return;
    ended_ = true;
    RemoveHold();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  v1::Group::Stub stub_;
  const uint64_t number_;
  const std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<AttachStream> self_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;

  std::mutex mutex_;
  std::deque<v1::GroupMessage> outgoing_;  // the first one is being written
  bool finishing_ = false;
  bool ended_ = false;  // no operation may start any more
};

}  // namespace

std::shared_ptr<CoordinatorStream> OpenStream(const std::shared_ptr<grpc::Channel>& channel,
                                              uint64_t number, const GroupInfo& hello,
                                              std::shared_ptr<Inbox> inbox) {
  auto stream = std::make_shared<AttachStream>(channel, number, std::move(inbox));
  stream->Begin(hello);
  return stream;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& coordinator,
                                           std::chrono::milliseconds silence) {
  const int silence_ms = static_cast<int>(silence.count());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  // An idle group sends no data for hours: its pings go on all the same.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  return grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments);
}

namespace {

// The events of one call, one at a time, each with a limit: whoever waits longer ends the call.
class CallEvents {
 public:
  explicit CallEvents(grpc::ClientContext& context) : context_(context) {}
  ~CallEvents() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  grpc::CompletionQueue* queue() { return &queue_; }
  bool stalled() const { return stalled_; }
  // Whether the operation went well.
  bool Await(std::chrono::milliseconds limit) {
    void* tag = nullptr;
    bool ok = false;
    const auto until = std::chrono::system_clock::now() + limit;
    if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::TIMEOUT) return ok;
    stalled_ = true;
    context_.TryCancel();
    queue_.Next(&tag, &ok);
    return false;
  }

 private:
  grpc::ClientContext& context_;
  grpc::CompletionQueue queue_;
  bool stalled_ = false;
};

}  // namespace

CoordinatorBlobs::CoordinatorBlobs(std::shared_ptr<grpc::Channel> channel, FetchPatience patience)
    : channel_(std::move(channel)), patience_(patience) {}

absl::Status CoordinatorBlobs::Run(grpc::ClientContext& context, const Digest& digest,
                                   const BlobSink& sink) const {
  v1::FetchRequest request;
  request.set_digest(DigestToBytes(digest));
  const std::unique_ptr<v1::Blobs::Stub> stub = v1::Blobs::NewStub(channel_);
  CallEvents events(context);
  const auto reader = stub->AsyncFetch(&context, request, events.queue(), nullptr);
  bool goes_on = events.Await(patience_.first);
  absl::Status status;
  v1::FetchChunk chunk;
  for (bool first = true; goes_on && status.ok(); first = false) {
    reader->Read(&chunk, nullptr);
    goes_on = events.Await(first ? patience_.first : patience_.next);
    if (goes_on && first) status = sink.begin(chunk.total_bytes());
    if (goes_on && status.ok()) status = sink.write(chunk.data());
  }
  if (!status.ok()) context.TryCancel();
  grpc::Status ended;
  reader->Finish(&ended, nullptr);
  events.Await(patience_.next);
  if (events.stalled()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kIoError, "digest",
                     digest.Short(), "the coordinator sends nothing more");
  }
  if (!status.ok() || ended.ok()) return status;
  return Annotate(FromGrpcStatus(ended, context), absl::StrCat("fetching ", digest.Short()));
}

absl::Status CoordinatorBlobs::Fetch(const Digest& digest, const BlobSink& sink) {
  grpc::ClientContext context;
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return absl::CancelledError("the group leaves");
    running_.insert(&context);
  }
  const absl::Status status = Run(context, digest, sink);
  std::lock_guard lock(mutex_);
  running_.erase(&context);
  return status;
}

void CoordinatorBlobs::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

}  // namespace rootstock
