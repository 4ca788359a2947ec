// Against a real S3 server that checks signatures (rclone serve s3): argv[1] is its binary.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/objects/http_client.h"
#include "common/objects/object_store.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string server_binary;

// A server over DIR/root with the bucket "tunes"; it tells its port in its log.
class S3ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "s3-server-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    fs::create_directories(dir_ / "root/tunes");
    Start();
    options_.endpoint = "http://" + WaitForAddress();
    options_.access_key = "KEY";
    options_.secret_key = "SECRETKEY";
    store_ = *OpenObjectStore(*ParseStoreUri("s3://tunes/a b"), options_);
  }
  void TearDown() override {
    kill(server_, SIGKILL);
    waitpid(server_, nullptr, 0);
    fs::remove_all(dir_);
  }

  void Start() {
    const std::string log = (dir_ / "log").string();
    const std::string root = (dir_ / "root").string();
    server_ = fork();
    ASSERT_GE(server_, 0);
    if (server_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(out, 1);
    dup2(out, 2);
    execl(server_binary.c_str(), "rclone", "serve", "s3", "-v", "--config", "/dev/null",
          "--auth-key", "KEY,SECRETKEY", "--addr", "127.0.0.1:0", root.c_str(), nullptr);
    _exit(127);
  }
  // "Starting s3 server on [http://127.0.0.1:PORT/]"
  std::string WaitForAddress() const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const std::string mark = "[http://";
    while (std::chrono::steady_clock::now() < until) {
      std::stringstream log;
      log << std::ifstream(dir_ / "log").rdbuf();
      const size_t begin = log.str().find(mark);
      const size_t end = log.str().find("/]", begin);
      if (begin != std::string::npos && end != std::string::npos) {
        return log.str().substr(begin + mark.size(), end - begin - mark.size());
      }
      if (waitpid(server_, nullptr, WNOHANG) != 0) break;
      usleep(20'000);
    }
    ADD_FAILURE() << "no server: " << std::ifstream(dir_ / "log").rdbuf();
    return "";
  }
  fs::path Write(const std::string& bytes) const {
    std::ofstream(dir_ / "in", std::ios::binary) << bytes;
    return dir_ / "in";
  }
  static absl::StatusOr<std::string> Read(ObjectStore& store, const std::string& key) {
    std::string out;
    const absl::Status status = store.Get(key, 1 << 30, [&](std::string_view bytes) {
      out.append(bytes);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
  }

  fs::path dir_;
  pid_t server_ = -1;
  ObjectStoreOptions options_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(S3ServerTest, PutsSizesGetsAndRemoves) {
  std::string bytes(5 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  EXPECT_EQ(store_->Put("x+y/ö=1.bin", Write(bytes)), absl::OkStatus());
  EXPECT_EQ(*store_->Size("x+y/ö=1.bin"), bytes.size());
  EXPECT_EQ(*Read(*store_, "x+y/ö=1.bin"), bytes);
  EXPECT_EQ(fs::file_size(dir_ / "root/tunes/a b/x+y/ö=1.bin"), bytes.size());
  ASSERT_TRUE(store_->Remove("x+y/ö=1.bin").ok());
  EXPECT_TRUE(store_->Remove("x+y/ö=1.bin").ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Size("x+y/ö=1.bin").status()));
  EXPECT_TRUE(absl::IsNotFound(Read(*store_, "x+y/ö=1.bin").status()));
}

TEST_F(S3ServerTest, AWrongKeyIsRefusedByName) {
  EXPECT_EQ(store_->Put("x", Write("1")), absl::OkStatus());
  options_.secret_key = "ANOTHERKEY";
  const auto store = *OpenObjectStore(*ParseStoreUri("s3://tunes/a b"), options_);
  const auto got = Read(*store, "x");
  EXPECT_EQ(got.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(got.status().message()),
              HasSubstr("uri=s3://tunes/a b/x: the store answers HTTP 403 SignatureDoesNotMatch"));
}

// What a Get sends when a body ended early: its headers are part of the signature.
TEST_F(S3ServerTest, SignsRangesConditionsAndTokens) {
  EXPECT_EQ(store_->Put("x", Write("0123456789")), absl::OkStatus());
  HttpClient http(options_);
  HttpRequest request;
  request.url = options_.endpoint + "/tunes/a%20b/x";
  const auto whole = http.Do(request, "x", {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  request.headers = {"Range: bytes=4-", "If-Match: " + whole->head.etag,
                     "x-amz-security-token: token"};
  std::string bytes;
  HttpClient::Handlers handlers;
  handlers.body = [&](std::string_view more) {
    bytes.append(more);
    return absl::OkStatus();
  };
  const auto rest = http.Do(request, "x", handlers);
  ASSERT_TRUE(rest.ok()) << rest.status();
  // This server sends the range with 200, where S3 says 206 and a Get insists on it.
  EXPECT_EQ(rest->head.status / 100, 2) << rest->error_body;
  EXPECT_EQ(rest->head.etag, whole->head.etag);
  EXPECT_EQ(bytes, "456789");
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return 2;
  rootstock::server_binary = argv[1];
  return RUN_ALL_TESTS();
}
