#include "coordinator/rpc/inference_service.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "common/base/status.h"
#include "coordinator/rpc/generate_call.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {

// Thread-safe.
class InferenceService::Service : public v1::Inference::CallbackService {
 public:
  Service(Engine* engine, const Frontend* frontend, WorkPool* pool, StreamMetrics metrics,
          LazyAdapters* lazy)
      : engine_(engine),
        frontend_(frontend),
        pool_(pool),
        metrics_(std::move(metrics)),
        lazy_(lazy) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto call = std::make_shared<GenerateCall>(context, engine_, frontend_, metrics_);
    call->Begin(*request, pool_, lazy_);
    return call.get();
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      const bool special = !request->has_add_special_tokens() || request->add_special_tokens();
      ASSIGN_OR_RETURN(const auto ids,
                       frontend_->Encode(request->text(), special, request->parse_special()));
      response->mutable_token_ids()->Assign(ids.begin(), ids.end());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      const bool skip = !request->has_skip_special_tokens() || request->skip_special_tokens();
      const auto& ids = request->token_ids();
      ASSIGN_OR_RETURN(*response->mutable_text(),
                       frontend_->Decode({ids.data(), static_cast<size_t>(ids.size())}, skip));
      return absl::OkStatus();
    });
  }

 private:
  Engine* const engine_;
  const Frontend* const frontend_;
  WorkPool* const pool_;
  const StreamMetrics metrics_;
  LazyAdapters* const lazy_;
};

InferenceService::InferenceService(Engine* engine, const Frontend* frontend, WorkPool* pool,
                                   StreamMetrics metrics, LazyAdapters* lazy)
    : service_(std::make_unique<Service>(engine, frontend, pool, std::move(metrics), lazy)) {}
InferenceService::~InferenceService() = default;
grpc::Service* InferenceService::service() { return service_.get(); }

}  // namespace rootstock
