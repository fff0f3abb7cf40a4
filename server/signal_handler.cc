// SignalHandler: see signal_handler.h.
#include "server/signal_handler.h"

#include <signal.h>
#include <time.h>

namespace fox {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// The next pending signal within `milliseconds`, or 0.
int Next(long milliseconds) {
  const sigset_t set = Signals();
  const timespec timeout{0, milliseconds * 1000000};
  const int signal = sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

}  // namespace

SignalHandler::SignalHandler() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int SignalHandler::Wait() {
  while (!woken_) {
    if (int signal = Next(100)) return signal;
  }
  return 0;
}

bool SignalHandler::Again() { return Next(0) != 0; }

void SignalHandler::Wake() { woken_ = true; }

}  // namespace fox
