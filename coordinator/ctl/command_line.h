// loractl's command line: its commands with their flags.
#pragma once

#include <string>
#include <vector>

#include "common/base/adapter_ref.h"
#include "common/flags/commands.h"
#include "coordinator/ctl/client.h"
#include "rootstock/v1/aliases.pb.h"
#include "rootstock/v1/inference.pb.h"

namespace rootstock {

// What the command line and the config file say. One thread.
struct CommandLineValues {
  ClientOptions client;
  v1::GenerateRequest request;
  std::string batch, name, path, page_token, group;
  AdapterRef adapter;
  std::vector<v1::AliasTarget> targets;
  bool new_version = false;
  int64_t revision = 0;
  int32_t parallel = 256, page_size = 0;
  v1::TokenizeRequest tokenize;
  v1::DetokenizeRequest detokenize;
};

// Rows and commands that fill `values`, which is borrowed; the commands run with them.
std::vector<FlagSpec> ClientFlags(CommandLineValues& values);
std::vector<CommandSpec> ClientCommands(CommandLineValues& values);

}  // namespace rootstock
