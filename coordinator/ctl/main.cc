// loractl: the client.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/log.h"
#include "common/wire/library_log.h"
#include "coordinator/ctl/command_line.h"
#include "coordinator/ctl/output.h"
#include "coordinator/ctl/text.h"

namespace rootstock {
namespace {

void Say(const absl::Status& wrong) {
  std::fprintf(stderr, "loractl: %s\n", std::string(wrong.message()).c_str());
}

int Main(int argc, char** argv) {
  HoldStandardStreams();
  InitLogging("loractl", LogLevel::kError);
  RouteLibraryLogs();
  CommandLineValues values;
  if (const char* address = std::getenv("ROOTSTOCK_ADDRESS")) values.client.address = address;
  const ProgramInfo program = {
      "loractl",
      "client of a lora-coordinator\n"
      "exit codes: 0 done, 1 refused or failed, 2 usage, 3 no coordinator there",
      ROOTSTOCK_VERSION};
  if (const absl::Status text = CheckArguments(argc, argv); !text.ok()) {
    Say(text);
    return kExitUsage;
  }
  const int code = RunCommand(program, ClientFlags(values), ClientCommands(values), argc, argv);
  const absl::Status printed = FinishOutput();
  if (printed.ok()) return code;
  Say(printed);
  return code == kExitOk ? kExitFailed : code;
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
