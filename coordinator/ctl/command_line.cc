#include "coordinator/ctl/command_line.h"

#include <cstdio>
#include <utility>

#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/request_flags.h"

namespace rootstock {
namespace {

CommandSpec GenerateCommand(CommandLineValues& v) {
  CommandSpec command = {.name = "generate", .help = "stream an answer"};
  command.table = RequestFlags(v.request);
  for (const FlagSpec& flag : command.table) {
    if (flag.name == "prompt") command.arguments = {flag};
  }
  command.table.push_back({.name = "batch",
                           .target = &v.batch,
                           .help = "JSON lines of requests, sent at once",
                           .placeholder = "FILE"});
  command.table.push_back({.name = "parallel",
                           .target = &v.parallel,
                           .help = "of a batch, at most this many at a time",
                           .min = 1});
  command.run = [&v] {
    v.request.set_tenant(v.client.tenant);
    if (v.batch.empty()) return Generate(v.client, v.request);
    return GenerateBatch(v.client, v.request, v.batch, v.parallel);
  };
  return command;
}

FlagSpec Argument(std::string shown, std::string* target) {
  return {.name = shown, .target = target, .placeholder = shown, .required = true};
}

void AddAdapterCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  out.push_back({.name = "adapter add",
                 .help = "register a PEFT directory under the coordinator's --adapter-root",
                 .arguments = {Argument("NAME", &v.name), Argument("PATH", &v.path)},
                 .run = [&v] { return AddAdapter(v.client, v.name, v.path); }});
  out.push_back({.name = "adapter show",
                 .help = "what was understood of it, and where it is",
                 .arguments = {Argument("NAME", &v.name)},
                 .run = [&v] { return ShowAdapter(v.client, v.name); }});
  out.push_back({.name = "adapter list", .help = "all adapters", .run = [&v] {
                   return ListAdapters(v.client);
                 }});
  out.push_back({.name = "adapter rm",
                 .help = "forget a name; running requests finish",
                 .arguments = {Argument("NAME", &v.name)},
                 .run = [&v] { return RemoveAdapter(v.client, v.name); }});
}

void AddOtherCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  out.push_back({.name = "status", .help = "groups, pages, what ran together", .run = [&v] {
                   return ShowStatus(v.client);
                 }});
  out.push_back({.name = "drain",
                 .help = "finish a group's requests, then end it",
                 .arguments = {Argument("GROUP", &v.name)},
                 .run = [&v] { return DrainGroup(v.client, v.name); }});
  out.push_back(
      {.name = "tokenize",
       .help = "the ids of a text",
       .arguments = {Argument("TEXT", &v.text)},
       .table = {{.name = "no-special-tokens",
                  .target = &v.no_special,
                  .help = "without those a prompt begins with"},
                 {.name = "parse-special",
                  .target = &v.parse_special,
                  .help = "special tokens become their ids"}},
       .run = [&v] { return Tokenize(v.client, v.text, !v.no_special, v.parse_special); }});
}

}  // namespace

std::vector<FlagSpec> ClientFlags(CommandLineValues& v) {
  return {
      {.name = "address",
       .target = &v.client.address,
       .help = "of the coordinator; default also from ROOTSTOCK_ADDRESS",
       .placeholder = "HOST:PORT"},
      {.name = "tenant", .target = &v.client.tenant, .help = "whose adapters"},
      {.name = "timeout",
       .target = &v.client.timeout_seconds,
       .help = "seconds for the call; 0: none",
       .min = 0},
      {.name = "json", .target = &v.client.json, .help = "for programs"},
  };
}

std::vector<CommandSpec> ClientCommands(CommandLineValues& values) {
  std::vector<CommandSpec> commands = {GenerateCommand(values)};
  AddAdapterCommands(values, commands);
  AddOtherCommands(values, commands);
  for (CommandSpec& command : commands) {
    command.run = [&values, run = std::move(command.run)] {
      const absl::Status address = CheckAddress(values.client.address);
      if (address.ok()) return run();
      std::fprintf(stderr, "loractl: %s\n", std::string(address.message()).c_str());
      return static_cast<int>(kExitUsage);
    };
  }
  return commands;
}

}  // namespace rootstock
