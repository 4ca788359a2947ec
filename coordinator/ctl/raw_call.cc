#include "coordinator/ctl/raw_call.h"

#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

namespace rootstock {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

grpc::ByteBuffer ToBuffer(const std::string& message) {
  const grpc::Slice slice(message);
  return {&slice, 1};
}

std::string ToText(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok()) return "";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// For one operation after another. One thread.
class OperationQueue {
 public:
  ~OperationQueue() {
    queue_.Shutdown();
    Wait();
  }
  grpc::CompletionQueue* get() { return &queue_; }
  // Whether the operation that was started succeeded.
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

 private:
  grpc::CompletionQueue queue_;
};

template <typename Take>
void ForEach(const std::string& message, int number, UnknownField::Type type, Take take) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(message)) return;
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == type) take(field);
  }
}

}  // namespace

grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                     const std::string& method, const std::string& request, std::string* response) {
  OperationQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, method, queue.get());
  grpc::ByteBuffer answer;
  bool answered = false;
  call->StartCall(nullptr);
  if (queue.Wait()) {
    call->Write(ToBuffer(request), grpc::WriteOptions().set_last_message(), nullptr);
    queue.Wait();  // fails for a call that was refused; Finish says why
    call->Read(&answer, nullptr);
    answered = queue.Wait();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Wait();
  if (answered) *response = ToText(answer);
  return status;
}

std::string MessageWith(int field, const std::string& text) {
  UnknownFieldSet fields;
  fields.AddLengthDelimited(field, text);
  std::string message;
  fields.SerializeToString(&message);
  return message;
}

std::vector<std::string> FieldTexts(const std::string& message, int field) {
  std::vector<std::string> texts;
  ForEach(message, field, UnknownField::TYPE_LENGTH_DELIMITED,
          [&](const UnknownField& found) { texts.push_back(found.length_delimited()); });
  return texts;
}

std::vector<uint64_t> FieldNumbers(const std::string& message, int field) {
  std::vector<uint64_t> numbers;
  ForEach(message, field, UnknownField::TYPE_VARINT,
          [&](const UnknownField& found) { numbers.push_back(found.varint()); });
  return numbers;
}

}  // namespace rootstock
