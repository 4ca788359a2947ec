#include <cstdio>

#include "absl/strings/str_join.h"
#include "coordinator/ctl/commands.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {

int Tokenize(const ClientOptions& options, const v1::TokenizeRequest& request) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::TokenizeResponse response;
  const grpc::Status status =
      v1::Inference::NewStub(Connect(options))->Tokenize(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", absl::StrJoin(response.token_ids(), " ").c_str());
  }
  return kExitOk;
}

int Detokenize(const ClientOptions& options, const v1::DetokenizeRequest& request) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::DetokenizeResponse response;
  const grpc::Status status =
      v1::Inference::NewStub(Connect(options))->Detokenize(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", response.text().c_str());
  }
  return kExitOk;
}

}  // namespace rootstock
