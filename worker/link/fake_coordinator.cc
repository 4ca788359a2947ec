#include "worker/link/fake_coordinator.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {

v1::GroupMessage ScriptedStream::Read(v1::GroupMessage::MessageCase expected) {
  v1::GroupMessage message;
  EXPECT_TRUE(wire_->Read(&message)) << "the stream ended";
  EXPECT_EQ(message.message_case(), expected) << message.ShortDebugString();
  return message;
}

GroupInfo ScriptedStream::ReadHello() {
  return FromProto(Read(v1::GroupMessage::kHello).hello()).value_or(GroupInfo());
}
AttachReport ScriptedStream::ReadReport() {
  return FromProto(Read(v1::GroupMessage::kReport).report()).value_or(AttachReport());
}
Completion ScriptedStream::ReadCompletion() {
  return FromProto(Read(v1::GroupMessage::kCompletion).completion()).value_or(Completion());
}
bool ScriptedStream::ReadLeaving() { return Read(v1::GroupMessage::kLeaving).has_leaving(); }
bool ScriptedStream::AtEnd() {
  v1::GroupMessage message;
  return !wire_->Read(&message);
}

void ScriptedStream::Order(const Epoch& epoch, const GroupLimits& limits) {
  v1::CoordinatorMessage message;
  ToProto(AttachOrder{epoch, limits}, message.mutable_attach());
  wire_->Write(message);
}

void ScriptedStream::Send(CommandId id, const Epoch& epoch, decltype(Command::kind) kind) {
  v1::CoordinatorMessage message;
  ToProto(Command{id, epoch, std::move(kind)}, message.mutable_command());
  wire_->Write(message);
}

AttachReport ScriptedStream::Attach(const Epoch& epoch, const GroupLimits& limits) {
  ReadHello();
  Order(epoch, limits);
  return ReadReport();
}

void ScriptedStream::Leave() {
  v1::CoordinatorMessage message;
  message.mutable_leave();
  wire_->Write(message);
}

void ScriptedStream::Refuse(const std::string& text) {
  v1::CoordinatorMessage message;
  message.mutable_refuse()->set_message(text);
  wire_->Write(message);
}

FakeCoordinator::FakeCoordinator(Script script, int port) : script_(std::move(script)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                           &port_);
  // As the coordinator's: the group pings while a script is silent.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.RegisterService(static_cast<v1::Group::Service*>(this));
  builder.RegisterService(static_cast<v1::Blobs::Service*>(this));
  server_ = builder.BuildAndStart();
}

FakeCoordinator::~FakeCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

grpc::Status FakeCoordinator::Attach(grpc::ServerContext* context, ScriptedStream::Wire* wire) {
  int number = 0;
  {
    std::lock_guard lock(mutex_);
    number = streams_++;
  }
  ScriptedStream stream(wire);
  return script_(stream, number);
}

grpc::Status FakeCoordinator::Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                                    grpc::ServerWriter<v1::FetchChunk>* writer) {
  const auto digest = DigestFromBytes(request->digest(), "digest");
  if (!digest.ok()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "digest");
  if (before_fetch) before_fetch(*digest);
  const auto it = blobs.find(*digest);
  if (it == blobs.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such content");
  constexpr size_t kChunk = 1000;
  for (size_t i = 0; i < it->second.size(); i += kChunk) {
    v1::FetchChunk chunk;
    chunk.set_data(it->second.substr(i, kChunk));
    if (i == 0) chunk.set_total_bytes(it->second.size());
    writer->Write(chunk);
  }
  return grpc::Status::OK;
}

}  // namespace rootstock
