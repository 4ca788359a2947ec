#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t CountLines(const std::string& text, const std::string& start) {
  size_t count = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    count += line.rfind(start, 0) == 0;
  }
  return count;
}

// GET /metrics by a plain socket.
std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const std::string ask = "GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n";
  EXPECT_EQ(write(fd, ask.data(), ask.size()), static_cast<ssize_t>(ask.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

TEST(Metrics, EveryCombinationStartsAtZero) {
  Metrics metrics;
  const auto requests = metrics.MakeCounter(
      "requests_total", "Requests ended.",
      {{"tenant_class", {"default"}}, {"outcome", {"ok", "client_error", "overloaded"}}});
  EXPECT_EQ(CountLines(metrics.Text(), "rootstock_requests_total{"), 3u);
  requests.At("default", "ok").Add();
  requests.At("default", "ok").Add(2);
  EXPECT_EQ(requests.At("default", "ok").Value(), 3);
  EXPECT_THAT(metrics.Text(),
              HasSubstr(R"(rootstock_requests_total{outcome="ok",tenant_class="default"} 3)"));
  EXPECT_THAT(
      metrics.Text(),
      HasSubstr(R"(rootstock_requests_total{outcome="overloaded",tenant_class="default"} 0)"));
}

TEST(Metrics, LaterValuesAreBounded) {
  Metrics metrics;
  const auto pages = metrics.MakeGauge(
      "pages", "Pages.", {{.name = "group", .at_most = 2}, {"owner", {"kv", "free"}}});
  EXPECT_EQ(CountLines(metrics.Text(), "rootstock_pages{"), 0u);
  for (int i = 0; i < 100; ++i) pages.At(absl::StrCat("g", i), "kv").Set(i);
  EXPECT_EQ(CountLines(metrics.Text(), "rootstock_pages{"), 3u);
  EXPECT_EQ(pages.At("other", "kv").Value(), 99);
  EXPECT_EQ(pages.At("g1", "kv").Value(), 1);
}

TEST(Metrics, AForgottenValueMakesRoomForAnother) {
  Metrics metrics;
  const auto pages = metrics.MakeGauge(
      "pages", "Pages.", {{.name = "group", .at_most = 2}, {"owner", {"kv", "free"}}});
  const auto loads = metrics.MakeCounter("loads_total", "L.", {{.name = "group", .at_most = 2}});
  for (const char* group : {"a", "b", "c"}) {  // the last one shares "other"
    for (const char* owner : {"kv", "free"}) pages.At(group, owner).Set(1);
    loads.At(group).Add();
  }
  pages.Forget("group", "c");      // no value of its own
  pages.Forget("group", "other");  // whoever shares it is still there
  pages.Forget("owner", "kv");     // a listed one is there from the start
  EXPECT_EQ(CountLines(metrics.Text(), "rootstock_pages{"), 6u);
  pages.Forget("group", "a");
  loads.Forget("group", "a");
  EXPECT_EQ(CountLines(metrics.Text(), "rootstock_pages{"), 4u);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("group=\"a\"")));
  pages.At("c", "kv").Set(3);
  EXPECT_THAT(metrics.Text(), HasSubstr("{group=\"c\",owner=\"kv\"} 3"));
  EXPECT_EQ(loads.At("a").Value(), 0);  // from the start again
}

TEST(MetricsDeathTest, UnlistedValueIsABug) {
  Metrics metrics;
  const auto counter = metrics.MakeCounter("x_total", "X.", {{"reason", {"a"}}});
  EXPECT_DEBUG_DEATH(counter.At("b").Add(), "unlisted label value");
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("\"b\"")));
}

TEST(Metrics, HistogramHasItsBuckets) {
  Metrics metrics;
  const auto tokens = metrics.MakeHistogram("step_batch_tokens", "Tokens.", PowersOfTwo(8));
  tokens.At().Observe(3);
  EXPECT_THAT(metrics.Text(), HasSubstr(R"(rootstock_step_batch_tokens_bucket{le="2"} 0)"));
  EXPECT_THAT(metrics.Text(), HasSubstr(R"(rootstock_step_batch_tokens_bucket{le="4"} 1)"));
  EXPECT_THAT(metrics.Text(), HasSubstr("rootstock_step_batch_tokens_sum 3"));
}

TEST(Metrics, ThreadsShareASeries) {
  Metrics metrics;
  const auto counter = metrics.MakeCounter("x_total", "X.", {{.name = "group", .at_most = 64}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) counter.At("g0").Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.At("g0").Value(), 4000);
}

std::string Promtool() {
  const char* path = std::getenv("ROOTSTOCK_PROMTOOL");
  return path == nullptr ? "" : path;
}

TEST(MetricsServer, ScrapeIsCompleteAndClean) {
  Metrics metrics;
  metrics.MakeInfo("build_info", "What runs.", {{"version", "1.2"}, {"revision", "abc"}});
  metrics.MakeCounter("requests_total", "Requests ended.", {{"outcome", {"ok"}}});
  metrics.MakeHistogram("queue_wait_seconds", "Wait.", {.001, .01});
  auto server = MetricsServer::Start(metrics, "127.0.0.1", 0);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->port(), 0);
  const std::string text = Scrape((*server)->port());
  EXPECT_THAT(text, HasSubstr(R"(rootstock_build_info{revision="abc",version="1.2"} 1)"));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_start_time_seconds", "process_open_fds"}) {
    EXPECT_EQ(CountLines(text, absl::StrCat(name, " ")), 1u) << text;
  }

  const auto taken = MetricsServer::Start(metrics, "127.0.0.1", (*server)->port());
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(std::string(taken.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", (*server)->port())));

  ASSERT_FALSE(Promtool().empty()) << "ROOTSTOCK_PROMTOOL names the promtool to test with";
  const std::string file = ::testing::TempDir() + "/scrape.txt";
  std::ofstream(file) << text;
  EXPECT_EQ(std::system(absl::StrCat(Promtool(), " check metrics < ", file).c_str()), 0) << text;
}

}  // namespace
}  // namespace rootstock
