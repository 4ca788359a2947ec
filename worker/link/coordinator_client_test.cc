// The connection to a coordinator whose host vanishes.
#include "worker/link/coordinator_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"

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

}  // namespace
}  // namespace rootstock
