// Unary calls whose answer comes later, from another thread.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace rootstock {

// Ends once: with the answer, or when the client has gone. Lives until gRPC is done with it.
// Thread-safe.
class PendingCall : public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<PendingCall> Start(grpc::CallbackServerContext* context);

  // `fill` writes the response; it is not run when the call has ended already.
  void Answer(const absl::Status& status, const std::function<void()>& fill = nullptr);

  void OnCancel() override;
  void OnDone() override;

 private:
  explicit PendingCall(grpc::CallbackServerContext* context) : context_(context) {}

  std::mutex mutex_;
  grpc::CallbackServerContext* const context_;
  bool ended_ = false;
  std::shared_ptr<PendingCall> self_;
};

}  // namespace rootstock
