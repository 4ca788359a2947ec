// The coordinator's gRPC server: every service on one port.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace rootstock {

// Serves the given services, health and reflection. Thread-safe.
class RpcServer {
 public:
  // `address`: HOST:PORT; port 0 lets the system choose. UNAVAILABLE naming the address when it
  // can't listen there. The services outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const std::string& address, const std::vector<grpc::Service*>& services);
  ~RpcServer();
  int port() const;  // bound

  // What the health service says of Inference and of the server as a whole: SERVING while a group
  // is ready. The other services always serve.
  void SetServing(bool serving);
  // Takes no more calls; those still running at the deadline are cancelled.
  void Shutdown(absl::Time deadline);

 private:
  struct State;
  explicit RpcServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rootstock
