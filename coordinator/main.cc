// lora-coordinator: flags, start, and the way out.
#include <unistd.h>

#include <csignal>
#include <optional>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/wire/library_log.h"
#include "coordinator/coordinator.h"
#include "coordinator/options.h"

namespace rootstock {
namespace {

// Until SIGTERM, SIGINT, or SIGUSR1, which drains groups too. A second one ends the process.
void WaitForTheEnd(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  // A shell starts what it puts in the background with SIGINT ignored.
  for (const int next : {SIGTERM, SIGINT, SIGUSR1}) std::signal(next, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

int Main(int argc, char** argv) {
  CoordinatorOptions options;
  const ProgramInfo program = {
      "lora-coordinator", "schedules worker groups and serves their clients", ROOTSTOCK_VERSION};
  if (const auto code = ParseFlagsOrExit(program, CoordinatorFlags(options), argc, argv)) {
    return *code;
  }
  InitLogging("coordinator", ParseLogLevel(options.log_level));
  RouteLibraryLogs();
  // Before any thread starts: all of them inherit it, and only the main thread takes signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  if (const absl::Status usage = CheckOptions(options); !usage.ok()) {
    LogError(std::string(usage.message()));
    return 2;
  }
  // A limit on the size of files is an error of the write that meets it.
  std::signal(SIGXFSZ, SIG_IGN);

  const auto coordinator = Coordinator::Start(options);
  if (!coordinator.ok()) {
    LogError(std::string(coordinator.status().message()));
    return 1;
  }
  WaitForTheEnd(signals);
  LogInfo("draining, at most ", options.drain_timeout, " s; a second signal ends it at once");
  (*coordinator)->Drain(absl::Now() + absl::Seconds(options.drain_timeout));
  LogInfo("drained");
  _exit(0);  // the metrics' server would take seconds to stop, its port taken
}

}  // namespace
}  // namespace rootstock

int main(int argc, char** argv) { return rootstock::Main(argc, argv); }
