// Health and reflection of a server with gRPC's own services beside one of ours.
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/raw_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServicesTest : public ::testing::Test {
 protected:
  void Start(bool with_extras) {
    grpc::EnableDefaultHealthCheckService(with_extras);
    // Reflection is a plugin of every server that is built after it.
    if (with_extras) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&inference_);
    server_ = builder.BuildAndStart();
    options_.address = absl::StrCat("127.0.0.1:", port);
  }
  // Runs a command; its exit code.
  int Run(int (*command)(const ClientOptions&, const std::string&), const std::string& service) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = command(options_, service);
    errors_ = testing::internal::GetCapturedStderr();
    out_ = testing::internal::GetCapturedStdout();
    return code;
  }

  v1::Inference::Service inference_;
  std::unique_ptr<grpc::Server> server_;
  ClientOptions options_;
  std::string out_, errors_;
};

TEST_F(ServicesTest, HealthOfTheServerAndOfAService) {
  Start(true);
  auto* health = server_->GetHealthCheckService();
  EXPECT_EQ(Run(CheckHealth, ""), kExitOk);
  EXPECT_EQ(out_, "SERVING\n");
  health->SetServingStatus("rootstock.v1.Inference", false);
  EXPECT_EQ(Run(CheckHealth, "rootstock.v1.Inference"), kExitFailed);
  EXPECT_EQ(out_, "NOT_SERVING\n");
  options_.json = true;
  EXPECT_EQ(Run(CheckHealth, "rootstock.v1.Inference"), kExitFailed);
  EXPECT_EQ(
      nlohmann::json::parse(out_),
      nlohmann::json::parse(R"({"service": "rootstock.v1.Inference", "status": "NOT_SERVING"})"));
  EXPECT_EQ(Run(CheckHealth, "no.such"), kExitFailed);
  EXPECT_THAT(errors_, HasSubstr("loractl: NOT_FOUND: service=no.such: "));
  EXPECT_EQ(nlohmann::json::parse(out_)["error"]["code"], "NOT_FOUND");
}

TEST_F(ServicesTest, ReflectionListsServicesAndMethods) {
  Start(true);
  EXPECT_EQ(Run(ShowServices, ""), kExitOk);
  EXPECT_THAT(out_, HasSubstr("grpc.reflection.v1alpha.ServerReflection\n"));
  EXPECT_THAT(out_, HasSubstr("\nrootstock.v1.Inference\n"));
  EXPECT_EQ(Run(ShowServices, "rootstock.v1.Inference"), kExitOk);
  EXPECT_THAT(out_, HasSubstr("Generate    rootstock.v1.GenerateRequest    "
                              "stream rootstock.v1.GenerateResponse\n"));
  options_.json = true;
  EXPECT_EQ(Run(ShowServices, "rootstock.v1.Inference"), kExitOk);
  EXPECT_EQ(nlohmann::json::parse(out_)["methods"][1], nlohmann::json::parse(R"({
      "name": "Tokenize", "request": "rootstock.v1.TokenizeRequest", "client_streaming": false,
      "response": "rootstock.v1.TokenizeResponse", "server_streaming": false})"));
  for (const char* wrong : {"no.such", "rootstock.v1.TokenizeRequest"}) {
    EXPECT_EQ(Run(ShowServices, wrong), kExitFailed);
    EXPECT_THAT(errors_, HasSubstr(absl::StrCat("loractl: NOT_FOUND: service=", wrong, ": ")));
  }
}

TEST_F(ServicesTest, AServerWithoutThemOrNone) {
  Start(false);
  EXPECT_EQ(Run(CheckHealth, ""), kExitFailed);
  EXPECT_THAT(errors_, HasSubstr("UNIMPLEMENTED"));
  server_->Shutdown();
  server_.reset();
  EXPECT_EQ(Run(CheckHealth, ""), kExitUnreachable);
  EXPECT_EQ(Run(ShowServices, ""), kExitUnreachable);
}

TEST(RawCall, FieldsByNumber) {
  EXPECT_THAT(FieldTexts(MessageWith(7, "a") + MessageWith(6, "b") + MessageWith(7, ""), 7),
              ElementsAre("a", ""));
  EXPECT_THAT(FieldNumbers("\x08\x96\x01", 1), ElementsAre(150));
  EXPECT_THAT(FieldTexts("\x08\x96\x01", 1), IsEmpty());
  EXPECT_THAT(FieldTexts("\x0a\x7f", 1), IsEmpty());  // cut
}

}  // namespace
}  // namespace rootstock
