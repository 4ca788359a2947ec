// A coordinator whose host vanishes, or that stands still.
#include "worker/link/coordinator_client.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/error_trailer.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {
namespace {

using namespace std::chrono_literals;

// Speaks HTTP/2 until the connection stands, then says nothing more; reads all that comes.
class VanishedHost {
 public:
  VanishedHost() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~VanishedHost() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  // Until the peer gives the connection up and no other comes.
  void Serve() const {
    for (int fd = accept(listener_, nullptr, nullptr); fd >= 0;
         fd = accept(listener_, nullptr, nullptr)) {
      const char settings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0};  // an empty SETTINGS frame
      EXPECT_EQ(send(fd, settings, sizeof(settings), MSG_NOSIGNAL), 9);
      char buffer[4096];
      while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
      }
      close(fd);
    }
  }

  const int listener_;
  int port_ = 0;
  std::thread thread_;
};

TEST(CoordinatorClient, AVanishedCoordinatorIsLost) {
  VanishedHost host;
  const auto inbox = std::make_shared<Inbox>();
  const auto channel = MakeChannel(host.address(), 200ms);
  const auto stream = OpenStream(channel, 1, GroupInfo{}, inbox);
  const auto event = inbox->Pop(Inbox::Clock::now() + 10s);
  if (!event.has_value()) stream->Cancel();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, LinkEvent::Kind::kLost);
  EXPECT_EQ(event->why.code(), absl::StatusCode::kUnavailable) << event->why;
}

// Gives "content" in seven chunks; stands still before the one that is told, until it may go on.
class HaltingBlobs : public v1::Blobs::Service {
 public:
  explicit HaltingBlobs(size_t halt_before) : halt_before_(halt_before) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~HaltingBlobs() override {
    go_on.set_value();
    server_->Shutdown();
  }
  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest*,
                     grpc::ServerWriter<v1::FetchChunk>* writer) override {
    const std::string content = "content";
    for (size_t i = 0; i < content.size(); ++i) {
      if (i == halt_before_) go_on.get_future().wait();
      v1::FetchChunk chunk;
      if (i == 0) chunk.set_total_bytes(content.size());
      chunk.set_data(content.substr(i, 1));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }
  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }
  std::promise<void> go_on;

 private:
  const size_t halt_before_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(CoordinatorBlobs, AFetchThatStandsStillEnds) {
  for (const auto& [halt_before, patience] :
       {std::pair<size_t, FetchPatience>{0, {.first = 50ms, .next = 1h}},
        std::pair<size_t, FetchPatience>{3, {.first = 1h, .next = 50ms}}}) {
    HaltingBlobs service(halt_before);
    CoordinatorBlobs blobs(service.Channel(), patience);
    std::string got;
    const absl::Status status =
        blobs.Fetch(Sha256Of("content"), {[](uint64_t) { return absl::OkStatus(); },
                                          [&](std::string_view more) {
                                            got += more;
                                            return absl::OkStatus();
                                          }});
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kIoError);
    EXPECT_EQ(got, std::string("content").substr(0, halt_before));
  }
}

// Its disk is full, say.
class RefusingBlobs : public v1::Blobs::Service {
 public:
  explicit RefusingBlobs(absl::Status status) : status_(std::move(status)) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest*,
                     grpc::ServerWriter<v1::FetchChunk>*) override {
    return ToGrpcStatus(status_, context);
  }
  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }

 private:
  const absl::Status status_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(CoordinatorBlobs, ARefusalKeepsItsReason) {
  RefusingBlobs service(
      MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoSpace, "data", "x", "full"));
  const absl::Status status = CoordinatorBlobs(service.Channel()).Fetch(Sha256Of("content"), {});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  ASSERT_TRUE(GetErrorDetail(status));
  EXPECT_EQ(GetErrorDetail(status)->reason, Reason::kNoSpace);
}

// A large one over a slow network, or to a slow disk: here one that waits longer than anybody may.
TEST(CoordinatorBlobs, AFetchThatGoesOnTakesWhatItTakes) {
  HaltingBlobs service(/*halt_before=*/7);  // never
  CoordinatorBlobs blobs(service.Channel(), {.first = 10s, .next = 200ms});
  std::string got;
  std::promise<void> never;
  const absl::Status status = blobs.Fetch(
      Sha256Of("content"), {[](uint64_t) { return absl::OkStatus(); },
                            [&](std::string_view more) {
                              got += more;
                              never.get_future().wait_for(got.size() % 3 == 0 ? 250ms : 0ms);
                              never = {};
                              return absl::OkStatus();
                            }});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(got, "content");
}

}  // namespace
}  // namespace rootstock
