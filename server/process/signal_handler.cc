// SignalHandler: blocked signals that one thread waits for.
#include <unistd.h>

#include "kernels/core/check.h"
#include "server/process/process_end.h"

namespace fox {
namespace {

// The signal of Wake. A real-time signal: sigwaitinfo returns SIGTERM and SIGINT before it.
int WakeSignal() { return SIGRTMIN; }

}  // namespace

SignalHandler::SignalHandler() {
  sigemptyset(&stops_);
  sigaddset(&stops_, SIGTERM);
  sigaddset(&stops_, SIGINT);
  all_ = stops_;
  sigaddset(&all_, WakeSignal());
  FOX_CHECK(pthread_sigmask(SIG_BLOCK, &all_, nullptr) == 0);
  signal(SIGPIPE, SIG_IGN);
}

int SignalHandler::Wait() {
  for (;;) {
    const int signal = sigwaitinfo(&all_, nullptr);
    if (signal > 0) return signal == WakeSignal() ? 0 : signal;
  }
}

bool SignalHandler::Again() {
  const timespec now{};
  return sigtimedwait(&stops_, nullptr, &now) > 0;
}

void SignalHandler::Wake() { FOX_CHECK(kill(getpid(), WakeSignal()) == 0); }

}  // namespace fox
