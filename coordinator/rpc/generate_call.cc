#include "coordinator/rpc/generate_call.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/wire/error_trailer.h"
#include "coordinator/request/request.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/status.h"

namespace rootstock {

GenerateCall::GenerateCall(grpc::CallbackServerContext* context, Engine* engine,
                           const Frontend* frontend, StreamMetrics metrics)
    : context_(context), engine_(engine), frontend_(frontend), backpressure_(std::move(metrics)) {}

void GenerateCall::Begin(const v1::GenerateRequest& wire, WorkPool* pool, LazyAdapters* lazy) {
  self_ = shared_from_this();
  arrived_ = absl::Now();
  const auto deadline = context_->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    deadline_ = absl::FromChrono(deadline);
  }
  with_ids_ = wire.echo_token_ids() || !frontend_->has_tokenizer();
  auto request = FromProto(wire);
  if (!request.ok()) {
    Refuse(request.status());
    return;
  }
  request->deadline = deadline_;
  if (lazy != nullptr && lazy->MayHold(request->model, request->tenant)) {
    return Await(*std::move(request), lazy);
  }
  const bool taken = pool->Post(
      [self = self_, request = *std::move(request)]() mutable { self->Admit(std::move(request)); });
  if (!taken) Refuse(TooBusy(*pool));
}

// Nothing is fetched for a request that is refused whatever the store holds, and nothing kept of
// one that is cancelled.
void GenerateCall::Await(GenerateRequest request, LazyAdapters* lazy) {
  auto place = engine_->Enter(request);
  if (!place.ok()) return Refuse(place.status());
  request.place = *std::move(place);
  const std::string model = request.model;
  const std::string tenant = request.tenant;
  {
    const std::lock_guard lock(mutex_);
    held_ = std::move(request);
  }
  const uint64_t waiting =
      lazy->Fetch(model, tenant, [weak = weak_from_this()](const absl::Status& fetched) {
        if (const auto self = weak.lock()) self->AdmitFetched(fetched);
      });
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    forget_ = [lazy, model, tenant, waiting] { lazy->Forget(model, tenant, waiting); };
    cancelled = cancelled_;
  }
  if (cancelled) StopFetch();
}

void GenerateCall::StopFetch() {
  std::optional<GenerateRequest> request;  // ends outside the lock
  std::function<void()> forget;
  {
    const std::lock_guard lock(mutex_);
    request = std::exchange(held_, std::nullopt);
    forget = std::exchange(forget_, nullptr);
  }
  if (forget) forget();
}

bool GenerateCall::StopWaiting() {
  std::lock_guard lock(mutex_);
  return std::exchange(waiting_, false);
}

void GenerateCall::Refuse(const absl::Status& status) {
  if (StopWaiting()) engine_->Refused(status);
  End(status);
}

void GenerateCall::AdmitFetched(const absl::Status& fetched) {
  GenerateRequest request;
  {
    const std::lock_guard lock(mutex_);
    if (!held_) return;  // cancelled
    request = *std::exchange(held_, std::nullopt);
  }
  // What no store knows is unknown to the engine too, which says so as ever.
  if (fetched.ok() || absl::IsNotFound(fetched)) return Admit(std::move(request));
  if (!absl::IsCancelled(fetched)) return Refuse(fetched);
  Refuse(MakeError(absl::StatusCode::kUnavailable, Reason::kDraining, "model", request.model,
                   "the coordinator drains; the adapter was not fetched any more"));
}

void GenerateCall::Admit(GenerateRequest request) {
  if (!StopWaiting()) return;  // cancelled before anybody heard of it
  const auto number = engine_->Generate(std::move(request), shared_from_this());
  if (!number.ok()) {
    End(number.status());
    return;
  }
  bool cancelled = false;
  {
    std::lock_guard lock(mutex_);
    number_ = *number;
    cancelled = cancelled_;
  }
  if (cancelled) engine_->Cancel(*number);
}

void GenerateCall::OnAccepted(const GenerateAccepted& accepted) {
  accepted_ = accepted;
  v1::GenerateResponse message;
  ToProto(accepted, message.mutable_accepted());
  Write(std::move(message));
}

void GenerateCall::OnPromptLogprobs(std::vector<TokenLogprob> logprobs) {
  v1::GenerateResponse message;
  ToProto(logprobs, *frontend_, message.mutable_prompt_logprobs());
  Write(std::move(message));
}

void GenerateCall::OnDelta(GenerateDelta delta) {
  const bool says_something = !delta.text.empty() || with_ids_ || !delta.logprobs.empty() ||
                              delta.finish_reason != FinishReason::kNone;
  if (!says_something) return;
  v1::GenerateResponse message;
  ToProto(delta, with_ids_, *frontend_, message.mutable_delta());
  Write(std::move(message));
}

void GenerateCall::OnDone(const absl::Status& status, const GenerateUsage& usage) {
  if (status.ok()) {
    v1::GenerateResponse message;
    v1::Done* done = message.mutable_done();
    done->mutable_usage()->set_prompt_tokens(usage.prompt_tokens);
    done->mutable_usage()->set_completion_tokens(usage.completion_tokens);
    done->set_seed(accepted_.seed);
    done->set_resolved_model(accepted_.resolved_model);
    if (accepted_.adapter.has_value()) done->set_adapter_digest(accepted_.adapter->Hex());
    Write(std::move(message));
  }
  End(status);
}

void GenerateCall::Write(v1::GenerateResponse message) {
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  outgoing_.push_back(std::move(message));
  backpressure_.Update(outgoing_.size());
  if (!writing_) WriteNextLocked();
}

void GenerateCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) outgoing_.clear();  // OnCancel tells the engine
  backpressure_.Update(outgoing_.size());
  WriteNextLocked();
}

void GenerateCall::WriteNextLocked() {
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (end_.has_value() && !finished_) {
    finished_ = true;
    Finish(ToGrpcStatus(*end_, context_));
  }
}

void GenerateCall::End(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  end_ = status;
  if (!writing_) WriteNextLocked();
}

// gRPC tells of a passed deadline as of a cancel.
absl::Status GenerateCall::CancelStatus() const {
  if (EndedByDeadline(arrived_, deadline_, absl::Now())) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, Reason::kDeadlineExceeded, "deadline", "",
                     "it passed before the request was looked at");
  }
  return MakeError(absl::StatusCode::kCancelled, Reason::kCancelled, "request", "",
                   "cancelled by the client");
}

// The client is gone or its deadline passed: what is queued has no reader.
void GenerateCall::OnCancel() {
  std::optional<RequestNumber> number;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    number = number_;
    if (outgoing_.size() > 1) outgoing_.erase(outgoing_.begin() + 1, outgoing_.end());
    if (!writing_) outgoing_.clear();
    backpressure_.Update(outgoing_.size());
  }
  if (number.has_value()) engine_->Cancel(*number);
  StopFetch();
  Refuse(CancelStatus());
}

void GenerateCall::OnDone() { self_.reset(); }

}  // namespace rootstock
