// loractl: the client.
#include <cstdlib>

#include "coordinator/ctl/command_line.h"

int main(int argc, char** argv) {
  rootstock::CommandLineValues values;
  if (const char* address = std::getenv("ROOTSTOCK_ADDRESS")) values.client.address = address;
  const rootstock::ProgramInfo program = {
      "loractl",
      "client of a lora-coordinator\n"
      "exit codes: 0 done, 1 refused or failed, 2 usage, 3 no coordinator there",
      ROOTSTOCK_VERSION};
  return rootstock::RunCommand(program, rootstock::ClientFlags(values),
                               rootstock::ClientCommands(values), argc, argv);
}
