// Test peer: a coordinator in this process whose streams follow a script.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/plan/plan.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {

// One stream as its script sees it.
class ScriptedStream {
 public:
  using Wire = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::GroupMessage>;
  explicit ScriptedStream(Wire* wire) : wire_(wire) {}

  // Fails the test when the stream ends or another message comes.
  GroupInfo ReadHello();
  AttachReport ReadReport();
  Completion ReadCompletion();
  bool ReadLeaving();
  bool AtEnd();

  void Order(const Epoch& epoch, const GroupLimits& limits = {});
  void Send(CommandId id, const Epoch& epoch, decltype(Command::kind) kind);
  void Send(const v1::CoordinatorMessage& message) { wire_->Write(message); }
  // ReadHello, Order, ReadReport.
  AttachReport Attach(const Epoch& epoch, const GroupLimits& limits = {});
  void Leave();
  void Refuse(const std::string& text);

 private:
  v1::GroupMessage Read(v1::GroupMessage::MessageCase expected);
  Wire* const wire_;
};

// Runs `script(stream, n)` for the n-th stream, from 0, on gRPC's thread; its status ends the
// stream. Serves blobs too. *Thread-safe.*
class FakeCoordinator : public v1::Group::Service, public v1::Blobs::Service {
 public:
  using Script = std::function<grpc::Status(ScriptedStream&, int)>;
  // port 0: any that is free.
  explicit FakeCoordinator(Script script, int port = 0);
  ~FakeCoordinator() override;
  int port() const { return port_; }

  // Called before a blob is served, on gRPC's thread.
  std::function<void(const Digest&)> before_fetch;
  std::map<Digest, std::string> blobs;

  grpc::Status Attach(grpc::ServerContext* context, ScriptedStream::Wire* wire) override;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchChunk>* writer) override;

 private:
  const Script script_;
  std::mutex mutex_;
  int streams_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace rootstock
