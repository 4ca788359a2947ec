#include "tests/perf/stream_request.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"

namespace rootstock {

v1::GenerateRequest MakeStreamRequest(const StreamBenchOptions& options, const std::string& model,
                                      std::mt19937& random) {
  v1::GenerateRequest request;
  request.set_model(model);
  std::uniform_int_distribution<int> id(options.first_id, options.last_id);
  for (int i = 0; i < options.prompt_tokens; ++i) request.mutable_token_ids()->add_ids(id(random));
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(options.max_tokens);
  request.set_ignore_eos(true);
  request.set_echo_token_ids(true);
  return request;
}

absl::StatusOr<Arrivals> RunStream(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  Arrivals arrivals;
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    const auto now = std::chrono::steady_clock::now();
    arrivals.insert(arrivals.end(), response.delta().token_ids_size(), now);
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat("generate: ", status.error_message()));
  }
  if (arrivals.size() != static_cast<size_t>(request.max_tokens())) {
    return absl::InternalError(absl::StrCat("a stream of ", request.max_tokens(),
                                            " tokens ended after ", arrivals.size()));
  }
  return arrivals;
}

}  // namespace rootstock
