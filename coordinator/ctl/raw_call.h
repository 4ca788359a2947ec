// Calls by a method's name: for services whose messages nothing here is compiled with.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rootstock {

// Sends one serialised message to "/package.Service/Method" and takes the first answer.
grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext& context,
                     const std::string& method, const std::string& request, std::string* response);

// A serialised message of one field, a text.
std::string MessageWith(int field, const std::string& text);
// What a serialised message holds under a field's number; empty where it can't be read. Texts are
// texts, bytes and messages alike.
std::vector<std::string> FieldTexts(const std::string& message, int field);
std::vector<uint64_t> FieldNumbers(const std::string& message, int field);

}  // namespace rootstock
