// loractl's commands; each returns the process's exit code.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/adapter_ref.h"
#include "coordinator/ctl/client.h"
#include "rootstock/v1/aliases.pb.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// Streams one answer; with --json one object when it is complete.
int Generate(const ClientOptions& options, v1::GenerateRequest request);
// Sends every line of `file` at once, at most `parallel` at a time; exit code of the worst one.
// Answers come interleaved line by line behind their labels; with --json one object a line, in the
// order in which they end, with "line" and "label".
int GenerateBatch(const ClientOptions& options, const v1::GenerateRequest& defaults,
                  const std::string& file, int parallel);
int Tokenize(const ClientOptions& options, const v1::TokenizeRequest& request);
int Detokenize(const ClientOptions& options, const v1::DetokenizeRequest& request);

int AddAdapter(const ClientOptions& options, const std::string& name, const std::string& path,
               bool new_version);
// Sends a local PEFT directory; goes on where an earlier try of the same files ended.
int UploadAdapter(const ClientOptions& options, const std::string& name,
                  const std::string& directory, bool new_version);
// Gives the bytes of an unfinished one back.
int AbortUpload(const ClientOptions& options, const std::string& upload_id);
int ShowAdapter(const ClientOptions& options, const AdapterRef& ref);
// All of them, or with a page size or token that one page.
int ListAdapters(const ClientOptions& options, int32_t page_size, const std::string& page_token);
// Both, without a version, of all of them; return when what used them has ended and all is free.
int UnloadAdapter(const ClientOptions& options, const AdapterRef& ref);
int RemoveAdapter(const ClientOptions& options, const AdapterRef& ref);
// Group "": all.
int PinAdapter(const ClientOptions& options, const AdapterRef& ref, const std::string& group,
               bool pinned);

// NAME[@N][=WEIGHT], with commas between several.
absl::StatusOr<std::vector<v1::AliasTarget>> ParseAliasTargets(const std::string& text);
int SetAlias(const ClientOptions& options, const std::string& alias,
             const std::vector<v1::AliasTarget>& targets);
int ShowAlias(const ClientOptions& options, const std::string& alias);  // with its revisions
int ListAliases(const ClientOptions& options);
// To that revision; 0: to the one before.
int RollbackAlias(const ClientOptions& options, const std::string& alias, uint64_t revision);
int RemoveAlias(const ClientOptions& options, const std::string& alias);

int ShowStatus(const ClientOptions& options);
int DrainGroup(const ClientOptions& options, const std::string& group);

// What the health service says of a service, or of the whole server for "": kExitOk for SERVING,
// else kExitFailed.
int CheckHealth(const ClientOptions& options, const std::string& service);
// By reflection: the services of the server for "", else the methods of that one.
int ShowServices(const ClientOptions& options, const std::string& service);

}  // namespace rootstock
