#include "common/objects/http_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace rootstock {

HttpFixture::HttpFixture(std::vector<Step> steps) : steps_(std::move(steps)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener_, 16);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

HttpFixture::~HttpFixture() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  if (const int connection = connection_; connection >= 0) shutdown(connection, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

std::string HttpFixture::endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }

std::vector<std::string> HttpFixture::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HttpFixture::Serve() {
  for (size_t i = 0; !stopping_; ++i) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    connection_ = connection;
    if (!stopping_) Answer(connection, steps_[std::min(i, steps_.size() - 1)]);
    connection_ = -1;
    close(connection);
  }
}

void HttpFixture::Answer(int connection, const Step& step) {
  std::string request;
  char buffer[4096];
  while (request.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = recv(connection, buffer, sizeof(buffer), 0);
    if (n <= 0) return;
    request.append(buffer, static_cast<size_t>(n));
  }
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  if (on_request) on_request();
  if (step.refuse) return;
  std::string all = step.head + "Connection: close\r\n\r\n";
  if (step.drip_ms == 0) all += step.body;
  send(connection, all.data(), all.size(), MSG_NOSIGNAL);
  for (size_t i = 0; step.drip_ms > 0 && i < step.body.size() && !stopping_; ++i) {
    if (send(connection, &step.body[i], 1, MSG_NOSIGNAL) <= 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(step.drip_ms));
  }
  while (step.hang && recv(connection, buffer, sizeof(buffer), 0) > 0) {
  }
}

HttpFixture::Step HttpAnswer(int status, size_t content_length, const std::string& body,
                             const std::string& etag) {
  return {absl::StrCat("HTTP/1.1 ", status, " x\r\nETag: ", etag,
                       "\r\nContent-Length: ", content_length, "\r\n"),
          body};
}

}  // namespace rootstock
