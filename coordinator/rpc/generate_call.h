// One Inference.Generate call.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "coordinator/adapters/lazy_adapters.h"
#include "coordinator/engine/engine.h"
#include "coordinator/frontend/frontend.h"
#include "coordinator/rpc/backpressure.h"
#include "coordinator/rpc/work_pool.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// Streams one request's answer. Messages queue up while the client is slow: they are bounded by
// the request's own tokens, and nobody waits for them. Keeps itself alive until gRPC is done with
// it; as a GenerateSink it may live longer. Thread-safe.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                     public GenerateSink,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  // Engine and frontend outlive the call.
  GenerateCall(grpc::CallbackServerContext* context, Engine* engine, const Frontend* frontend,
               StreamMetrics metrics);
  // Once, when a shared_ptr owns it: the request goes to the engine on a thread of the pool. One
  // for an adapter that a store may hold waits for `lazy` before; null: none.
  void Begin(const v1::GenerateRequest& wire, WorkPool* pool, LazyAdapters* lazy);

  void OnAccepted(const GenerateAccepted& accepted) override;
  void OnPromptLogprobs(std::vector<TokenLogprob> logprobs) override;
  void OnDelta(GenerateDelta delta) override;
  void OnDone(const absl::Status& status, const GenerateUsage& usage) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Admit(GenerateRequest request);
  void Await(GenerateRequest request, LazyAdapters* lazy);
  void AdmitFetched(const absl::Status& fetched);
  void StopFetch();  // of what is held: nobody waits for it
  // Ends the call before the engine has heard of it, unless something else has.
  void Refuse(const absl::Status& status);
  bool StopWaiting();  // true once
  absl::Status CancelStatus() const;
  void Write(v1::GenerateResponse message);
  // The call's status, after what is queued.
  void End(const absl::Status& status);
  void WriteNextLocked();

  grpc::CallbackServerContext* const context_;
  Engine* const engine_;
  const Frontend* const frontend_;
  std::shared_ptr<GenerateCall> self_;
  absl::Time arrived_, deadline_ = absl::InfiniteFuture();  // wall clock
  bool with_ids_ = false;
  GenerateAccepted accepted_;  // written by OnAccepted, before all other sink calls

  std::mutex mutex_;
  bool waiting_ = true;  // neither refused nor with the engine
  // While its adapter is being looked for: the request, and what ends that.
  std::optional<GenerateRequest> held_;
  std::function<void()> forget_;
  std::optional<RequestNumber> number_;
  bool cancelled_ = false;
  std::deque<v1::GenerateResponse> outgoing_;  // the first one is being written
  Backpressure backpressure_;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<absl::Status> end_;
};

}  // namespace rootstock
