#include "coordinator/ctl/command_line.h"

#include <cstdio>
#include <utility>

#include "common/base/status.h"
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

FlagSpec Argument(std::string shown, std::string* target, bool required = true) {
  return {.name = shown, .target = target, .placeholder = shown, .required = required};
}

// NAME, or with its version NAME@N.
FlagSpec AdapterArgument(AdapterRef* target) {
  return {.name = "NAME[@N]",
          .target = FlagSetter{FlagSetter::Kind::kText,
                               [target](const std::vector<std::string>& texts) -> absl::Status {
                                 const auto ref = ParseAdapterRef(texts[0]);
                                 if (!ref) {
                                   return InvalidField(Reason::kInvalidArgument, "NAME", texts[0],
                                                       "must be NAME or NAME@N, N from 1");
                                 }
                                 *target = *ref;
                                 return absl::OkStatus();
                               }},
          .placeholder = "NAME[@N]",
          .required = true};
}

void AddPinCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  for (const bool pinned : {true, false}) {
    out.push_back(
        {.name = pinned ? "adapter pin" : "adapter unpin",
         .help = pinned ? "keep it on the device" : "let it go when others need the room",
         .arguments = {AdapterArgument(&v.adapter)},
         .table = {{.name = "group", .target = &v.group, .help = "default: all groups"}},
         .run = [&v, pinned] { return PinAdapter(v.client, v.adapter, v.group, pinned); }});
  }
}

FlagSpec NewVersionFlag(bool* target) {
  return {.name = "new-version", .target = target, .help = "under a name that has other content"};
}

void AddAdapterCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  out.push_back({.name = "adapter add",
                 .help = "register a PEFT directory under its root, or a store's URI",
                 .arguments = {Argument("NAME", &v.name), Argument("PATH", &v.path)},
                 .table = {NewVersionFlag(&v.new_version)},
                 .run = [&v] { return AddAdapter(v.client, v.name, v.path, v.new_version); }});
  out.push_back({.name = "adapter upload",
                 .help = "send a local PEFT directory and register it; resumes",
                 .arguments = {Argument("NAME", &v.name), Argument("DIR", &v.path)},
                 .table = {NewVersionFlag(&v.new_version)},
                 .run = [&v] { return UploadAdapter(v.client, v.name, v.path, v.new_version); }});
  out.push_back({.name = "adapter abort-upload",
                 .help = "forget what came of an unfinished upload",
                 .arguments = {Argument("UPLOAD", &v.name)},
                 .run = [&v] { return AbortUpload(v.client, v.name); }});
  out.push_back({.name = "adapter show",
                 .help = "what was understood of it, and where it is",
                 .arguments = {AdapterArgument(&v.adapter)},
                 .run = [&v] { return ShowAdapter(v.client, v.adapter); }});
  out.push_back({.name = "adapter list",
                 .help = "all adapters, or a page of them",
                 .table = {{.name = "page-size",
                            .target = &v.page_size,
                            .help = "one page of at most so many; 0: all pages",
                            .min = 0},
                           {.name = "page-token",
                            .target = &v.page_token,
                            .help = "the page that another one named as its next"}},
                 .run = [&v] { return ListAdapters(v.client, v.page_size, v.page_token); }});
  out.push_back({.name = "adapter rm",
                 .help = "forget a version, or a name with all; running requests finish",
                 .arguments = {AdapterArgument(&v.adapter)},
                 .run = [&v] { return RemoveAdapter(v.client, v.adapter); }});
  out.push_back({.name = "adapter unload",
                 .help = "free it on all groups when what runs has ended; the name stays",
                 .arguments = {AdapterArgument(&v.adapter)},
                 .run = [&v] { return UnloadAdapter(v.client, v.adapter); }});
  AddPinCommands(v, out);
}

void AddAliasCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  FlagSpec targets = {
      .name = "TARGETS",
      .target = FlagSetter{FlagSetter::Kind::kText,
                           [&v](const std::vector<std::string>& texts) -> absl::Status {
                             ASSIGN_OR_RETURN(v.targets, ParseAliasTargets(texts[0]));
                             return absl::OkStatus();
                           }},
      .placeholder = "TARGETS",
      .required = true};
  out.push_back({.name = "alias set",
                 .help = "what it stands for: NAME[@N][=WEIGHT], several with commas",
                 .arguments = {Argument("ALIAS", &v.name), std::move(targets)},
                 .run = [&v] { return SetAlias(v.client, v.name, v.targets); }});
  out.push_back({.name = "alias show",
                 .help = "what it stands for, and stood for",
                 .arguments = {Argument("ALIAS", &v.name)},
                 .run = [&v] { return ShowAlias(v.client, v.name); }});
  out.push_back(
      {.name = "alias list", .help = "all aliases", .run = [&v] { return ListAliases(v.client); }});
  out.push_back(
      {.name = "alias rollback",
       .help = "what it stood for before",
       .arguments = {Argument("ALIAS", &v.name)},
       .table = {{.name = "to-revision",
                  .target = &v.revision,
                  .help = "an earlier one; 0: the one before",
                  .min = 0}},
       .run = [&v] { return RollbackAlias(v.client, v.name, static_cast<uint64_t>(v.revision)); }});
  out.push_back({.name = "alias rm",
                 .help = "forget an alias; its adapters stay",
                 .arguments = {Argument("ALIAS", &v.name)},
                 .run = [&v] { return RemoveAlias(v.client, v.name); }});
}

void AddOtherCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  out.push_back({.name = "status", .help = "groups, pages, what ran together", .run = [&v] {
                   return ShowStatus(v.client);
                 }});
  out.push_back({.name = "drain",
                 .help = "finish a group's requests, then end it",
                 .arguments = {Argument("GROUP", &v.name)},
                 .run = [&v] { return DrainGroup(v.client, v.name); }});
  out.push_back({.name = "health",
                 .help = "whether the server, or a service of it, serves",
                 .arguments = {Argument("SERVICE", &v.name, /*required=*/false)},
                 .run = [&v] { return CheckHealth(v.client, v.name); }});
  out.push_back({.name = "services",
                 .help = "the server's gRPC services, or a service's methods",
                 .arguments = {Argument("SERVICE", &v.name, /*required=*/false)},
                 .run = [&v] { return ShowServices(v.client, v.name); }});
}

// A switch of a request that stays unset, and so the server's to choose, until it is given.
FlagSpec Switch(std::string name, std::string help, std::function<void(bool)> set) {
  return {.name = std::move(name),
          .target = FlagSetter{FlagSetter::Kind::kSwitch,
                               [set = std::move(set)](const std::vector<std::string>& texts) {
                                 set(texts[0] == "true");
                                 return absl::OkStatus();
                               }},
          .help = std::move(help)};
}

absl::Status SetIds(const std::vector<std::string>& texts, v1::DetokenizeRequest& request) {
  ASSIGN_OR_RETURN(const auto ids, ParseIds("IDS", texts));
  request.mutable_token_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

void AddTokenCommands(CommandLineValues& v, std::vector<CommandSpec>& out) {
  out.push_back({.name = "tokenize",
                 .help = "the ids of a text",
                 .arguments = {{.name = "TEXT",
                                .target = FlagSetter{FlagSetter::Kind::kText,
                                                     [&v](const std::vector<std::string>& texts) {
                                                       v.tokenize.set_text(texts[0]);
                                                       return absl::OkStatus();
                                                     }},
                                .required = true}},
                 .table = {Switch("no-special-tokens", "without those a prompt begins with",
                                  [&v](bool on) { v.tokenize.set_add_special_tokens(!on); }),
                           Switch("parse-special", "special tokens become their ids",
                                  [&v](bool on) { v.tokenize.set_parse_special(on); })},
                 .run = [&v] { return Tokenize(v.client, v.tokenize); }});
  out.push_back({.name = "detokenize",
                 .help = "the text of token ids, as in 1,2,3",
                 .arguments = {{.name = "IDS",
                                .target = FlagSetter{FlagSetter::Kind::kText,
                                                     [&v](const std::vector<std::string>& texts) {
                                                       return SetIds(texts, v.detokenize);
                                                     }},
                                .placeholder = "IDS",
                                .required = true}},
                 .table = {Switch("skip-special-tokens", "leave them out of the text (true)",
                                  [&v](bool on) { v.detokenize.set_skip_special_tokens(on); })},
                 .run = [&v] { return Detokenize(v.client, v.detokenize); }});
}

}  // namespace

std::vector<FlagSpec> ClientFlags(CommandLineValues& v) {
  return {
      {.name = "address",
       .target = &v.client.address,
       .help = "of the coordinator; also from ROOTSTOCK_ADDRESS",
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
  AddAliasCommands(values, commands);
  AddTokenCommands(values, commands);
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
