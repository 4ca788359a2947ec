// What the server tells of itself: grpc.health.v1 and gRPC's server reflection.
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/raw_call.h"

namespace rootstock {
namespace {

using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptorProto;
using google::protobuf::ServiceDescriptorProto;

constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
constexpr int kHealthServiceField = 1;  // of the request; empty: the server as a whole
constexpr int kHealthStatusField = 1;   // of the answer
constexpr uint64_t kServing = 1;
constexpr const char* kHealthNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
// ServerReflectionRequest
constexpr int kFileOfSymbolField = 4;
constexpr int kListServicesField = 7;
// ServerReflectionResponse
constexpr int kFilesField = 4;     // {1: FileDescriptorProto, ...}
constexpr int kServicesField = 6;  // {1: {1: name}, ...}
constexpr int kErrorField = 7;     // {1: code, 2: message}

// The first text of that number in a message.
std::string FirstText(const std::string& message, int field) {
  const std::vector<std::string> texts = FieldTexts(message, field);
  return texts.empty() ? "" : texts[0];
}
uint64_t FirstNumber(const std::string& message, int field) {
  const std::vector<uint64_t> numbers = FieldNumbers(message, field);
  return numbers.empty() ? 0 : numbers[0];
}

grpc::Status Reflect(const ClientOptions& options, grpc::ClientContext& context, int question,
                     const std::string& about, std::string* answer) {
  SetDeadline(options, context);
  grpc::Status status =
      RawCall(Connect(options), context, kReflection, MessageWith(question, about), answer);
  const std::vector<std::string> errors = FieldTexts(*answer, kErrorField);
  if (!status.ok() || errors.empty()) return status;
  return {static_cast<grpc::StatusCode>(FirstNumber(errors[0], 1)), FirstText(errors[0], 2)};
}

grpc::Status AboutService(const std::string& service, const grpc::Status& status) {
  return {status.error_code(), absl::StrCat("service=", service, ": ", status.error_message())};
}

// Null where no file has it.
const ServiceDescriptorProto* FindService(const std::vector<FileDescriptorProto>& files,
                                          const std::string& name) {
  for (const FileDescriptorProto& file : files) {
    for (const ServiceDescriptorProto& service : file.service()) {
      if (absl::StrCat(file.package(), ".", service.name()) == name) return &service;
    }
  }
  return nullptr;
}

// ".rootstock.v1.StatusRequest", without the dot that says where it begins.
std::string TypeName(const std::string& type) { return type.substr(type.starts_with('.') ? 1 : 0); }

nlohmann::json MethodJson(const MethodDescriptorProto& method) {
  return {{"name", method.name()},
          {"request", TypeName(method.input_type())},
          {"client_streaming", method.client_streaming()},
          {"response", TypeName(method.output_type())},
          {"server_streaming", method.server_streaming()}};
}

int ListServices(const ClientOptions& options) {
  grpc::ClientContext context;
  std::string answer;
  const grpc::Status status = Reflect(options, context, kListServicesField, "", &answer);
  if (!status.ok()) return Fail(options, status, context);
  std::vector<std::string> names;
  for (const std::string& service : FieldTexts(FirstText(answer, kServicesField), 1)) {
    names.push_back(FirstText(service, 1));
  }
  std::sort(names.begin(), names.end());
  if (options.json) {
    std::printf("%s\n", nlohmann::json{{"services", names}}.dump().c_str());
    return kExitOk;
  }
  for (const std::string& name : names) std::printf("%s\n", name.c_str());
  return kExitOk;
}

void PrintMethods(const ServiceDescriptorProto& service) {
  const auto type = [](const std::string& name, bool streaming) {
    return absl::StrCat(streaming ? "stream " : "", TypeName(name));
  };
  std::vector<std::vector<std::string>> rows = {{"method", "request", "response"}};
  for (const MethodDescriptorProto& method : service.method()) {
    rows.push_back({method.name(), type(method.input_type(), method.client_streaming()),
                    type(method.output_type(), method.server_streaming())});
  }
  PrintTable(rows);
}

}  // namespace

int CheckHealth(const ClientOptions& options, const std::string& service) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  std::string answer;
  const std::string request = service.empty() ? "" : MessageWith(kHealthServiceField, service);
  const grpc::Status status = RawCall(Connect(options), context, kHealthCheck, request, &answer);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    return Fail(options, AboutService(service, status), context);
  }
  if (!status.ok()) return Fail(options, status, context);
  const uint64_t number = FirstNumber(answer, kHealthStatusField);
  const std::string name = kHealthNames[number < std::size(kHealthNames) ? number : 0];
  if (options.json) {
    std::printf("%s\n", nlohmann::json{{"service", service}, {"status", name}}.dump().c_str());
  } else {
    std::printf("%s\n", name.c_str());
  }
  return number == kServing ? kExitOk : kExitFailed;
}

int ShowServices(const ClientOptions& options, const std::string& service) {
  if (service.empty()) return ListServices(options);
  grpc::ClientContext context;
  std::string answer;
  const grpc::Status status = Reflect(options, context, kFileOfSymbolField, service, &answer);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    return Fail(options, AboutService(service, status), context);
  }
  if (!status.ok()) return Fail(options, status, context);
  std::vector<FileDescriptorProto> files;
  for (const std::string& file : FieldTexts(FirstText(answer, kFilesField), 1)) {
    files.emplace_back().ParseFromString(file);
  }
  const ServiceDescriptorProto* found = FindService(files, service);
  if (found == nullptr) {
    return Fail(options, AboutService(service, {grpc::StatusCode::NOT_FOUND, "is no service"}),
                context);
  }
  if (options.json) {
    nlohmann::json out = {{"service", service}, {"methods", nlohmann::json::array()}};
    for (const MethodDescriptorProto& method : found->method()) {
      out["methods"].push_back(MethodJson(method));
    }
    std::printf("%s\n", out.dump().c_str());
  } else {
    PrintMethods(*found);
  }
  return kExitOk;
}

}  // namespace rootstock
