// loractl: the client.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/request_settings.h"

namespace rootstock {
namespace {

// What the command line asks for. `run` is the chosen command.
struct CommandLine {
  ClientOptions client;
  v1::GenerateRequest request;
  std::string batch, prompt, name, path, text;
  int parallel = 256;
  bool no_special = false, parse_special = false;
  absl::Status error;
  std::function<int()> run;
};

CLI::Option* AddSetting(CLI::App& app, const RequestSetting& setting) {
  const std::string flag = "--" + setting.name;
  if (setting.kind == SettingKind::kSwitch) {
    return app.add_flag(flag)->description(setting.help);
  }
  CLI::Option* option = app.add_option(flag)->description(setting.help);
  option->type_name(setting.placeholder);
  if (setting.kind == SettingKind::kList) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->expected(1, -1);
  }
  return option->allow_extra_args(false);
}

void AddGenerate(CLI::App& app, CommandLine& line) {
  CLI::App* generate = app.add_subcommand("generate", "stream an answer");
  std::vector<CLI::Option*> options;
  for (const RequestSetting& setting : RequestSettings()) {
    options.push_back(AddSetting(*generate, setting));
  }
  generate->add_option("text", line.prompt, "the prompt");
  generate->add_option("--batch", line.batch, "JSON lines of requests, sent at once");
  generate->add_option("--parallel", line.parallel, "of a batch, at most this many at a time");
  generate->callback([generate, options, &line] {
    for (size_t i = 0; i < options.size(); ++i) {
      if (options[i]->count() == 0 || !line.error.ok()) continue;
      line.error = RequestSettings()[i].set(options[i]->results(), line.request);
    }
    if (generate->count("text") > 0) line.request.set_text(line.prompt);
    line.run = [&line] {
      line.request.set_tenant(line.client.tenant);
      if (!line.batch.empty()) {
        return GenerateBatch(line.client, line.request, line.batch, line.parallel);
      }
      return Generate(line.client, line.request);
    };
  });
}

void AddAdapterCommands(CLI::App& app, CommandLine& line) {
  CLI::App* adapter = app.add_subcommand("adapter", "add, show, list or remove adapters");
  adapter->require_subcommand(1);
  CLI::App* add = adapter->add_subcommand("add", "register a PEFT directory under a name");
  add->add_option("name", line.name)->required();
  add->add_option("path", line.path, "on the coordinator, under its --adapter-root")->required();
  add->callback(
      [&line] { line.run = [&] { return AddAdapter(line.client, line.name, line.path); }; });
  CLI::App* show = adapter->add_subcommand("show", "what was understood of it, and where it is");
  show->add_option("name", line.name)->required();
  show->callback([&line] { line.run = [&] { return ShowAdapter(line.client, line.name); }; });
  CLI::App* list = adapter->add_subcommand("list", "all adapters");
  list->callback([&line] { line.run = [&] { return ListAdapters(line.client); }; });
  CLI::App* rm = adapter->add_subcommand("rm", "forget a name; running requests finish");
  rm->add_option("name", line.name)->required();
  rm->callback([&line] { line.run = [&] { return RemoveAdapter(line.client, line.name); }; });
}

void AddOtherCommands(CLI::App& app, CommandLine& line) {
  CLI::App* status = app.add_subcommand("status", "groups, pages, what ran together");
  status->callback([&line] { line.run = [&] { return ShowStatus(line.client); }; });
  CLI::App* drain = app.add_subcommand("drain", "finish a group's requests, then end it");
  drain->add_option("group", line.name)->required();
  drain->callback([&line] { line.run = [&] { return DrainGroup(line.client, line.name); }; });
  CLI::App* tokenize = app.add_subcommand("tokenize", "the ids of a text");
  tokenize->add_option("text", line.text)->required();
  tokenize->add_flag("--no-special-tokens", line.no_special, "without those a prompt begins with");
  tokenize->add_flag("--parse-special", line.parse_special, "special tokens become their ids");
  tokenize->callback([&line] {
    line.run = [&] {
      return Tokenize(line.client, line.text, !line.no_special, line.parse_special);
    };
  });
}

int Main(int argc, char** argv) {
  CommandLine line;
  CLI::App app("loractl: client of a lora-coordinator");
  app.footer("exit codes: 0 done, 1 refused or failed, 2 usage, 3 no coordinator there");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_config();
  app.set_version_flag("--version", "loractl " ROOTSTOCK_VERSION);
  app.add_option("--address", line.client.address, "HOST:PORT of the coordinator")
      ->capture_default_str()
      ->envname("ROOTSTOCK_ADDRESS");
  app.add_option("--tenant", line.client.tenant, "whose adapters");
  app.add_option("--timeout", line.client.timeout_seconds, "seconds for the call; 0 for none");
  app.add_flag("--json", line.client.json, "for programs");
  AddGenerate(app, line);
  AddAdapterCommands(app, line);
  AddOtherCommands(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (!line.error.ok()) {
    std::fprintf(stderr, "loractl: %s\n", std::string(line.error.message()).c_str());
    return kExitUsage;
  }
  return line.run();
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
