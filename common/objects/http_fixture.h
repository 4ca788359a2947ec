// A server that answers as a test tells it to.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rootstock {

// One connection after the other; each gets the answer of the next step, the last one for ever.
// *Thread-safe.*
class HttpFixture {
 public:
  struct Step {
    std::string head;     // status line and headers, each line ended; no blank line
    std::string body;     // what is sent of the body
    int drip_ms = 0;      // between the bytes of the body; 0: all at once
    bool hang = false;    // then nothing, until the client or the fixture closes
    bool refuse = false;  // close without an answer
  };
  explicit HttpFixture(std::vector<Step> steps);
  ~HttpFixture();

  std::string endpoint() const;               // http://127.0.0.1:PORT
  std::vector<std::string> requests() const;  // heads as they came
  // Called when the request's head is in.
  std::function<void()> on_request;

 private:
  void Serve();
  void Answer(int connection, const Step& step);

  const std::vector<Step> steps_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> connection_{-1};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

// 200 or 206 with an ETag "e" (or another) and the Content-Length given.
HttpFixture::Step HttpAnswer(int status, size_t content_length, const std::string& body,
                             const std::string& etag = "\"e\"");

}  // namespace rootstock
