// loractl: the client.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "coordinator/ctl/command_line.h"
#include "coordinator/ctl/text.h"

int main(int argc, char** argv) {
  rootstock::CommandLineValues values;
  if (const char* address = std::getenv("ROOTSTOCK_ADDRESS")) values.client.address = address;
  const rootstock::ProgramInfo program = {
      "loractl",
      "client of a lora-coordinator\n"
      "exit codes: 0 done, 1 refused or failed, 2 usage, 3 no coordinator there",
      ROOTSTOCK_VERSION};
  if (const absl::Status text = rootstock::CheckArguments(argc, argv); !text.ok()) {
    std::fprintf(stderr, "loractl: %s\n", std::string(text.message()).c_str());
    return 2;
  }
  return rootstock::RunCommand(program, rootstock::ClientFlags(values),
                               rootstock::ClientCommands(values), argc, argv);
}
