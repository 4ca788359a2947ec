#include "worker/link/signals.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>

namespace rootstock {
namespace {

sigset_t DrainSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR2);  // ends the thread
  return set;
}

}  // namespace

void BlockDrainSignals() {
  const sigset_t set = DrainSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void DieWithMpirun() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

SignalThread::SignalThread(std::function<void()> on_signal)
    : thread_([on_signal = std::move(on_signal)] {
        const sigset_t set = DrainSignals();
        int signal = 0;
        while (sigwait(&set, &signal) == 0 && signal != SIGUSR2) on_signal();
      }) {}

SignalThread::~SignalThread() {
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

}  // namespace rootstock
