// loractl's commands; each returns the process's exit code.
#pragma once

#include <string>

#include "coordinator/ctl/client.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// Streams one answer; with --json one object when it is complete.
int Generate(const ClientOptions& options, v1::GenerateRequest request);
// Sends every line of `file` at once, at most `parallel` at a time; exit code of the worst one.
// Answers come interleaved line by line behind their labels; with --json one object a line, in the
// order in which they end, with "line" and "label".
int GenerateBatch(const ClientOptions& options, const v1::GenerateRequest& defaults,
                  const std::string& file, int parallel);
int Tokenize(const ClientOptions& options, const std::string& text, bool add_special_tokens,
             bool parse_special);

int AddAdapter(const ClientOptions& options, const std::string& name, const std::string& path);
int ShowAdapter(const ClientOptions& options, const std::string& name);
int ListAdapters(const ClientOptions& options);
int RemoveAdapter(const ClientOptions& options, const std::string& name);

int ShowStatus(const ClientOptions& options);
int DrainGroup(const ClientOptions& options, const std::string& group);

}  // namespace rootstock
