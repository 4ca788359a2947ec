// Calls to a coordinator that is only its Cluster service.
#include "coordinator/ctl/client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/wait_notice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/cluster.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Thread-safe.
class FakeCluster : public v1::Cluster::Service {
 public:
  explicit FakeCluster(v1::StatusResponse answer) : answer_(std::move(answer)) {}
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusResponse* response) override {
    *response = answer_;
    return grpc::Status::OK;
  }

 private:
  const v1::StatusResponse answer_;
};

v1::StatusResponse WithGroups(const std::vector<std::pair<std::string, std::string>>& groups) {
  v1::StatusResponse status;
  status.set_served_model("base");
  for (const auto& [name, state] : groups) {
    status.add_groups()->set_name(name);
    status.mutable_groups()->rbegin()->set_state(state);
  }
  return status;
}

// A coordinator that takes connections itself, hanging up on the first `broken` of them.
// *One thread* beside its own.
class Coordinator {
 public:
  explicit Coordinator(v1::StatusResponse answer, int broken = 0) : cluster_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&cluster_);
    server_ = builder.BuildAndStart();
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this, broken] { Accept(broken); });
  }
  ~Coordinator() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    server_->Shutdown(std::chrono::system_clock::now());
  }

  ClientOptions options() const { return {.address = absl::StrCat("127.0.0.1:", port_)}; }
  int connections() const { return connections_; }

 private:
  void Accept(int broken) {
    for (int fd = accept(listener_, nullptr, nullptr); fd >= 0;
         fd = accept(listener_, nullptr, nullptr)) {
      if (++connections_ <= broken) {
        close(fd);
        continue;
      }
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
      grpc::AddInsecureChannelFromFd(server_.get(), fd);
    }
  }

  FakeCluster cluster_;
  std::unique_ptr<grpc::Server> server_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

struct Shown {
  int code;
  std::string out, errors;
};

Shown StatusOf(const ClientOptions& options) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = ShowStatus(options);
  std::string errors = testing::internal::GetCapturedStderr();
  return {code, testing::internal::GetCapturedStdout(), std::move(errors)};
}

TEST(Client, AConnectionThatFailsAtFirstFailsNoCall) {
  const Coordinator coordinator(WithGroups({{"g0", "ready"}}), /*broken=*/1);
  const Shown shown = StatusOf(coordinator.options());
  EXPECT_EQ(shown.code, kExitOk) << shown.errors;
  EXPECT_EQ(coordinator.connections(), 2);
}

TEST(Client, WhereNobodyListensACallSaysSoAtOnce) {
  ClientOptions options;
  {
    const Coordinator gone(WithGroups({}));
    options = gone.options();
  }
  const auto start = std::chrono::steady_clock::now();
  const Shown shown = StatusOf(options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(shown.code, kExitUnreachable);
  EXPECT_THAT(shown.errors, HasSubstr("Connection refused"));
}

TEST(Client, AnAddressHasAHostAndAPort) {
  for (const char* good : {"localhost:50051", "[::1]:1", "10.0.0.1:65535"}) {
    EXPECT_TRUE(CheckAddress(good).ok()) << good;
  }
  for (const char* bad : {"", "localhost", ":1", "h:0", "h:65536", "h:x", "http://localhost:1"}) {
    EXPECT_THAT(std::string(CheckAddress(bad).message()), HasSubstr("must be HOST:PORT")) << bad;
  }
}

TEST(Client, StatusSaysThatNoGroupIsThere) {
  const Coordinator none(WithGroups({}));
  EXPECT_THAT(StatusOf(none.options()).out,
              AllOf(HasSubstr("model       base\n"),
                    HasSubstr("\nno group is attached: requests wait until a lora-worker is\n")));
  const Coordinator left(WithGroups({{"g0", "drained"}, {"g1", "forming"}}));
  EXPECT_THAT(StatusOf(left.options()).out,
              AllOf(HasSubstr("no group is ready (g0: drained, g1: forming): requests wait"),
                    HasSubstr("\ngroup g0: drained,"), Not(HasSubstr("pages"))));
  const Coordinator ready(WithGroups({{"g0", "drained"}, {"g1", "ready"}}));
  EXPECT_THAT(StatusOf(ready.options()).out, AllOf(Not(HasSubstr("wait")), HasSubstr("pages")));
}

// What a WaitNotice says of a coordinator when nothing is heard.
std::string NoticeOf(const Coordinator& coordinator) {
  std::mutex mutex;
  std::condition_variable changed;
  std::string said;
  WaitNotice notice(Connect(coordinator.options()), std::chrono::milliseconds(0),
                    [&](const std::string& text) {
                      const std::lock_guard lock(mutex);
                      said = text;
                      changed.notify_all();
                    });
  std::unique_lock lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(60), [&] { return !said.empty(); });
  return said;
}

TEST(WaitNotice, SaysThatARequestWaitsForAGroup) {
  EXPECT_EQ(NoticeOf(Coordinator(WithGroups({}))), "no group is attached");
  EXPECT_EQ(NoticeOf(Coordinator(WithGroups({{"g0", "drained"}}))),
            "no group is ready (g0: drained)");
  EXPECT_EQ(WhyNoGroup(WithGroups({{"g0", "broken"}, {"g1", "ready"}})), "");
}

TEST(WaitNotice, EndsAtOnceWhenSomethingIsHeard) {
  const Coordinator coordinator(WithGroups({}));
  WaitNotice notice(Connect(coordinator.options()), std::chrono::hours(1),
                    [](const std::string&) { ADD_FAILURE(); });
  notice.Heard();
}

}  // namespace
}  // namespace rootstock
